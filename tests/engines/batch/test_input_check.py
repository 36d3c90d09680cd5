"""Input that a model cannot take is refused in a sentence."""

from typing import Any

import msgspec
import pytest

from echo2.engines.batch.input_check import check_job, check_samples
from echo2.engines.engine import EngineError, Sample
from tests.support.bad_jobs import BAD_JOBS
from tests.support.tiny_model import job

VOCABULARY = 64
GOOD = Sample(tokens=[1, 2], turns=[2], logprobs=[-1.0, -1.0])


def test_what_fits_is_accepted() -> None:
    check_job(job(), VOCABULARY)
    check_samples(job(samples=2), [GOOD, GOOD], VOCABULARY)


@pytest.mark.parametrize(
    ("change", "sentence"), [*BAD_JOBS.values(), ({"prompt": [VOCABULARY]}, "outside the model's vocabulary")]
)
def test_a_job_that_does_not_fit_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        check_job(msgspec.structs.replace(job(), **change), VOCABULARY)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": [], "turns": []}, "is empty"),
        ({"turns": [1]}, "do not add up"),
        ({"turns": [2, 0]}, "do not add up"),
        ({"tokens": [1, VOCABULARY]}, "outside the model's vocabulary"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        check_samples(job(samples=2), [GOOD, msgspec.structs.replace(GOOD, **change)], VOCABULARY)


def beginning(tokens: list[int]) -> Sample:
    return Sample(tokens=tokens, turns=[len(tokens)], logprobs=[0.0] * len(tokens))


WRONG_PASTS: dict[str, tuple[bytes, list[Sample], str]] = {
    "one beginning too few": (b"a lease", [beginning([5])], "a beginning for each"),
    "a group that is not served": (b"", [beginning([5])] * 2, "only a served group"),
    "more than the limit": (b"a lease", [beginning([5] * 9)] * 2, "does not add up"),
    "a token outside the vocabulary": (b"a lease", [beginning([VOCABULARY])] * 2, "vocabulary"),
}


@pytest.mark.parametrize("what", WRONG_PASTS)
def test_a_beginning_is_refused_with(what: str) -> None:
    served, past, reason = WRONG_PASTS[what]
    with pytest.raises(EngineError, match=reason):
        check_job(msgspec.structs.replace(job(samples=2, limit=8), served=served, past=past), VOCABULARY)


def test_there_must_be_one_sample_per_seed() -> None:
    with pytest.raises(EngineError, match="one sample per seed"):
        check_samples(job(samples=2), [GOOD], VOCABULARY)
