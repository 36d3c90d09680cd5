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


def test_there_must_be_one_sample_per_seed() -> None:
    with pytest.raises(EngineError, match="one sample per seed"):
        check_samples(job(samples=2), [GOOD], VOCABULARY)
