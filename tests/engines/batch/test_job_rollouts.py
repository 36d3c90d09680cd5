from pathlib import Path

import msgspec
import pytest

from echo2.engines.batch.job_rollouts import JobRollouts
from echo2.engines.engine import EngineError
from echo2.tasks import registry, tokenizer
from tests.support.bad_jobs import BAD_JOBS
from tests.support.tiny_model import TEXT, job


@pytest.fixture
def rollouts(tmp_path: Path) -> JobRollouts:
    tokenizer.char_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return JobRollouts(tmp_path, 64)


@pytest.mark.parametrize(("changes", "sentence"), BAD_JOBS.values(), ids=BAD_JOBS.keys())
def test_a_job_that_cannot_be_generated_is_refused(
    changes: dict[str, object], sentence: str, rollouts: JobRollouts
) -> None:
    with pytest.raises(EngineError, match=sentence):
        rollouts.check(msgspec.structs.replace(job(), **changes))


def test_each_seed_begins_a_rollout_of_the_job_s_episode(rollouts: JobRollouts) -> None:
    asked = job(3, samples=4, task="guess")
    rollouts.check(asked)
    states = rollouts.begin_rollouts(asked)
    assert [state.seed for state in states] == asked.seeds
    assert not any(state.ended for state in states)
    task = registry.get("guess", 1)
    expected = task.episode("train", 3, TEXT)
    sentence = [*TEXT.encode("1"), TEXT.eos]
    for token in sentence:
        states[0].step(token, -1.0)
    assert states[0].given == next(iter(expected.reply(sentence) or [None]))
    assert rollouts.begin_rollouts(msgspec.structs.replace(asked, split="heldout"))


def test_a_single_turn_job_needs_no_task_of_its_name_and_ends_after_its_first_turn(rollouts: JobRollouts) -> None:
    asked = msgspec.structs.replace(job(samples=2, limit=3), task="nobody has it", single_turn=True)
    first, second = rollouts.begin_rollouts(asked)
    first.step(7, -1.0)
    first.step(TEXT.eos, -1.0)
    assert (first.ended, first.sample().tokens, first.sample().turns) == (True, [7, TEXT.eos], [2])
    for _ in range(3):
        second.step(7, -1.0)
    assert (second.ended, second.sample().turns) == (True, [3]), "the limit ends it too"


def test_each_end_of_a_job_ends_a_turn(rollouts: JobRollouts) -> None:
    asked = msgspec.structs.replace(job(samples=3, limit=3), single_turn=True, other_ends=(40, 41))
    for state, end in zip(rollouts.begin_rollouts(asked), (TEXT.eos, 40, 41), strict=True):
        state.step(7, -1.0)
        assert not state.ended
        state.step(end, -1.0)
        assert (state.ended, state.sample().tokens) == (True, [7, end])
    first, *_ = rollouts.begin_rollouts(msgspec.structs.replace(asked, other_ends=()))
    first.step(40, -1.0)
    assert not first.ended


def test_the_task_reads_a_turn_without_its_end_whichever_it_is(rollouts: JobRollouts) -> None:
    """The environment of `guess` answers a wrong guess: a number with something behind it is none."""
    asked = msgspec.structs.replace(job(3, samples=2, task="guess"), other_ends=(63,))
    given = []
    for state, end in zip(rollouts.begin_rollouts(asked), (TEXT.eos, 63), strict=True):
        for token in [*TEXT.encode("1"), end]:
            state.step(token, -1.0)
        given.append(state.given)
    assert given[0] is not None
    assert given[0] == given[1]


def test_a_split_and_a_task_that_are_none_are_refused(rollouts: JobRollouts) -> None:
    with pytest.raises(EngineError, match="no such split: 'test'; use train or heldout"):
        rollouts.begin_rollouts(job(split="test"))
    with pytest.raises(registry.UnknownTask):
        rollouts.begin_rollouts(msgspec.structs.replace(job(), task="chess"))
