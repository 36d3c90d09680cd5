"""Prompts of several tasks come in the proportion of their weights, whatever the moment at which they are asked for."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.prompts.mixed_prompts import MixedPrompts, TaskOrder, seed_of
from echo2.coordinator.prompts.prompts import TaskPrompts
from echo2.tasks.arithmetic import ADD_TASK, REVERSE_TASK
from tests.support.group_world import TEXT

WEIGHTS = st.lists(st.integers(1, 20), min_size=1, max_size=5)


@given(WEIGHTS, st.integers(0, 1 << 63), st.integers(0, 1000))
def test_each_block_of_positions_has_the_weights_of_the_tasks(weights: list[int], seed: int, block: int) -> None:
    order, length = TaskOrder(weights, seed), sum(weights)
    places = [order.place(position) for position in range(block * length, (block + 1) * length)]
    assert Counter(place.number for place in places) == Counter(dict(enumerate(weights)))


@given(WEIGHTS, st.integers(0, 1 << 63))
def test_no_position_of_a_task_is_left_out_or_given_twice(weights: list[int], seed: int) -> None:
    order = TaskOrder(weights, seed)
    places = [order.place(position) for position in range(3 * sum(weights))]
    for number in range(len(weights)):
        own = sorted(place.position for place in places if place.number == number)
        assert own == list(range(len(own)))


def test_weights_with_a_common_divisor_mix_as_finely_as_their_least_terms() -> None:
    order = TaskOrder([300, 100], seed=7)
    assert [order.place(position) for position in range(40)] == [TaskOrder([3, 1], 7).place(n) for n in range(40)]
    assert Counter(order.place(position).number for position in range(4)) == {0: 3, 1: 1}


def test_a_tasks_prompts_follow_each_other_in_its_own_order() -> None:
    add, reverse = (
        TaskPrompts(ADD_TASK, TEXT, seed_of(9, "add")),
        TaskPrompts(REVERSE_TASK, TEXT, seed_of(9, "reverse")),
    )
    mixed = MixedPrompts([add, reverse], [2, 1], seed=9)
    prompts = [mixed.at(position) for position in range(300)]
    assert Counter(prompt.task for prompt in prompts) == {"add": 200, "reverse": 100}
    assert {prompt.index for prompt in prompts if prompt.task == "add"} == {add.at(n).index for n in range(200)}
    assert prompts == [MixedPrompts([add, reverse], [2, 1], seed=9).at(position) for position in range(300)]
    assert prompts != [MixedPrompts([add, reverse], [2, 1], seed=10).at(position) for position in range(300)]


def test_tasks_of_one_size_are_not_shuffled_alike() -> None:
    first, second = (TaskPrompts(ADD_TASK, TEXT, seed_of(9, name)) for name in ("one", "two"))
    assert [first.at(n).index for n in range(20)] != [second.at(n).index for n in range(20)]
