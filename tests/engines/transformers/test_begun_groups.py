"""A group that one engine has begun is finished by another: the same tokens as one engine alone, in float32."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from echo2.engines.direct import generate
from echo2.engines.engine import EngineError, Job, Sample, TellsTokens
from echo2.engines.transformers.engine import TransformersEngine
from tests.support import tiny_model
from tests.support.tiny_model import OnDisk, job

DRIFT = 5e-5


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    """Return a model that ends its turns often."""
    torch.set_num_threads(1)
    return tiny_model.make(tmp_path_factory.mktemp("chatty"), seed=3, eos_bias=0.6)


def loaded(tiny: OnDisk) -> TransformersEngine:
    engine = TransformersEngine()
    engine.load(tiny.folder, tiny.snapshot)
    return engine


def begun(engine: TransformersEngine, asked: Job, steps: int) -> list[Sample]:
    """Return what each sample has after so many steps; the group is then lost."""
    engine.begin(7, asked)
    for _ in range(steps):
        engine.step()
    samples = engine.so_far(asked.name)
    assert samples is not None
    engine.cancel(7)
    return samples


def as_given(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples as a lease gives them: without log-probabilities."""
    return [Sample(tokens=list(one.tokens), turns=[n for n in one.turns if n], logprobs=[0.0] * len(one.logprobs))
            for one in samples]  # fmt: skip


@pytest.mark.parametrize("steps", [1, 2, 9, 17, 30])
@pytest.mark.slow_but("30", "1")
def test_another_engine_goes_on_to_the_same_tokens(chatty: OnDisk, steps: int) -> None:
    first, second, alone = loaded(chatty), loaded(chatty), loaded(chatty)
    asked = msgspec.structs.replace(job(4, samples=8, limit=32), name=b"a lease")
    whole = generate(alone, asked)
    samples = begun(first, asked, steps)
    ended = sum(len(part.tokens) == len(one.tokens) for part, one in zip(samples, whole, strict=True))
    assert ended < len(whole) or steps == 30, "a sample is left to finish"
    finished = generate(second, msgspec.structs.replace(asked, past=as_given(samples)))
    for part, one, same in zip(samples, whole, finished, strict=True):
        given = len(part.tokens)
        assert same.tokens == one.tokens
        assert same.turns == one.turns
        assert same.logprobs[:given] == [0.0] * given
        assert same.logprobs[given:] == pytest.approx(one.logprobs[given:], abs=DRIFT)


@pytest.mark.slow
def test_a_turn_that_had_ended_is_answered_by_the_task_of_the_second_engine(chatty: OnDisk) -> None:
    first, second, alone = loaded(chatty), loaded(chatty), loaded(chatty)
    asked = msgspec.structs.replace(job(8, samples=8, limit=24, task="guess"), name=b"a lease")
    whole = generate(alone, asked)
    assert any(len(one.turns) > 1 for one in whole)
    for steps in range(1, 24):
        samples = begun(first, asked, steps)
        if any(len(one.turns) > 1 for one in samples):
            break
        finished = generate(second, msgspec.structs.replace(asked, past=as_given(samples)))
        assert [one.tokens for one in finished] == [one.tokens for one in whole]
        assert [one.turns for one in finished] == [one.turns for one in whole]


def test_tokens_so_far_are_told_by_name_and_disturb_nothing(chatty: OnDisk) -> None:
    engine = loaded(chatty)
    assert isinstance(engine, TellsTokens)
    asked = msgspec.structs.replace(job(4, samples=8, limit=32), name=b"a lease")
    whole = generate(engine, asked)
    assert engine.so_far(b"a lease") is None, "it has ended"
    engine.begin(1, asked)
    before = [0] * 8
    outcome = None
    while outcome is None:
        assert engine.so_far(b"another") is None
        samples = engine.so_far(b"a lease")
        assert samples is not None
        assert all(one.tokens == all_of.tokens[: len(one.tokens)] for one, all_of in zip(samples, whole, strict=True))
        assert all(len(one.tokens) >= n for one, n in zip(samples, before, strict=True))
        before = [len(one.tokens) for one in samples]
        outcome = next((done.outcome for done in engine.step()), None)
    assert outcome == whole


def test_a_group_without_a_name_is_not_told(chatty: OnDisk) -> None:
    engine = loaded(chatty)
    engine.begin(1, job(4, samples=2, limit=8))
    assert engine.so_far(b"") is None
    engine.cancel(1)


WRONG_PASTS = {
    "one beginning too few": ([Sample(tokens=[5], turns=[1], logprobs=[0.0])], "a beginning for each"),
    "more than one turn": ([Sample(tokens=[5, 6, 7], turns=[1, 1, 1], logprobs=[0.0, 0.0])] * 2, "more than one turn"),
    "more than the limit": ([Sample(tokens=[5] * 9, turns=[9], logprobs=[0.0] * 9)] * 2, "does not add up"),
    "a token outside the vocabulary": ([Sample(tokens=[9_999], turns=[1], logprobs=[0.0])] * 2, "vocabulary"),
}


@pytest.mark.parametrize("what", WRONG_PASTS)
def test_a_beginning_is_refused_with(chatty: OnDisk, what: str, tmp_path: Path) -> None:
    past, reason = WRONG_PASTS[what]
    with pytest.raises(EngineError, match=reason):
        loaded(chatty).begin(1, msgspec.structs.replace(job(4, samples=2, limit=8), past=past))
