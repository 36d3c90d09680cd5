"""Check what a model is to be fed: a token id out of range would wedge a GPU until its process ends."""

from collections.abc import Sequence

from echo2.engines.engine import EngineError, Job, Sample
from echo2.engines.temperature import LEAST_TEMPERATURE, MOST_TEMPERATURE


def check_job(job: Job, vocabulary: int) -> None:
    """Check a job's prompt, limit, seeds and temperature. Raises EngineError."""
    if not job.prompt or job.limit < 1:
        raise EngineError("a job needs a prompt, and a limit of one token at least")
    if not all(0 <= token < vocabulary for token in job.prompt):
        raise EngineError(f"the prompt has a token outside the model's vocabulary of {vocabulary}")
    if any(len(seed) != 16 for seed in job.seeds):
        raise EngineError("a seed must have 16 bytes")
    if not LEAST_TEMPERATURE <= job.temperature <= MOST_TEMPERATURE:
        raise EngineError(
            f"a temperature is from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE} thousandths, not {job.temperature}"
        )
    check_past(job, vocabulary)


def check_given(given: Sequence[int], vocabulary: int) -> None:
    """Check the tokens that an environment gives after a turn. Raises EngineError."""
    if not given or not all(0 <= token < vocabulary for token in given):
        raise EngineError(f"the environment's turn is empty, or has a token outside the vocabulary of {vocabulary}")


def check_past(job: Job, vocabulary: int) -> None:
    """Check what the samples of a job have so far. Raises EngineError."""
    if job.past and len(job.past) != len(job.seeds):
        raise EngineError("a group that is taken up again needs a beginning for each of its samples")
    if job.past and not job.served:
        raise EngineError("only a served group is taken up again, and this one is not served")
    for one in job.past:
        sampled = sum(one.turns[0::2])
        turns = one.turns[1:] if job.opened and one.turns[:1] == [0] else one.turns
        if sum(turns) != len(one.tokens) or sampled != len(one.logprobs) or sampled > job.limit or 0 in turns:
            raise EngineError("the beginning of a sample does not add up")
        if not all(0 <= token < vocabulary for token in one.tokens):
            raise EngineError(f"the beginning of a sample has a token outside the vocabulary of {vocabulary}")


def check_samples(job: Job, samples: Sequence[Sample], vocabulary: int) -> None:
    """Check samples that are to be scored under a job. Raises EngineError."""
    if len(samples) != len(job.seeds):
        raise EngineError(f"{len(samples)} samples for {len(job.seeds)} seeds: score one sample per seed")
    for sample in samples:
        turns = sample.turns[1:] if sample.turns[:1] == [0] else sample.turns  # the environment opened it
        if not sample.tokens or sum(turns) != len(sample.tokens) or min(turns) < 1:
            raise EngineError("a sample is empty, or its turns do not add up to its tokens")
        if not all(0 <= token < vocabulary for token in sample.tokens):
            raise EngineError(f"a sample has a token outside the model's vocabulary of {vocabulary}")
