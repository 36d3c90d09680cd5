"""The order of prompts: a permutation of the train splits per pass."""

from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.prompts.prompts import TaskPrompts, shuffle_index
from echo2.tasks.arithmetic import SINGLE_SUM
from echo2.tasks.task import TaskFault


def test_prompts_do_not_repeat_before_they_are_exhausted() -> None:
    prompts = TaskPrompts(SINGLE_SUM, TEXT_SMALL, seed=3)
    first = [prompts.at(position).index for position in range(prompts.size)]
    again = [prompts.at(position).index for position in range(prompts.size, 2 * prompts.size)]
    assert sorted(first) == sorted(again) == list(range(prompts.size))
    assert again != first
    assert [prompts.at(5), prompts.at(6)] == [TaskPrompts(SINGLE_SUM, TEXT_SMALL, seed=3).at(n) for n in (5, 6)]


def test_a_prompt_after_which_the_limit_leaves_the_models_context_is_none() -> None:
    shortest = min(len(TaskPrompts(SINGLE_SUM, TEXT_SMALL, seed=3).at(n).tokens) for n in range(158))
    prompts = TaskPrompts(SINGLE_SUM, TEXT_SMALL, seed=3, room=shortest)
    given, told = 0, set()
    for position in range(prompts.size):
        try:
            given += len(prompts.at(position).tokens) == shortest
        except TaskFault as fault:
            told.add(str(fault).partition(";")[2])
    assert told == {f" the model's context less run.limit leaves {shortest}"}
    assert 0 < given < prompts.size


@given(st.integers(1, 300), st.binary(max_size=8))
def test_the_shuffle_is_a_permutation(size: int, key: bytes) -> None:
    assert sorted(shuffle_index(i, size, key) for i in range(size)) == list(range(size))


class _Small:
    """A tokenizer for any task: one token per character."""

    eos = 0
    ends = (0,)
    size = 1 << 16

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, tokens: object) -> str:
        raise NotImplementedError


TEXT_SMALL = _Small()
