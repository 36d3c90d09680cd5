"""The comparison of rollouts with those of the same seeds generated alone."""

from benchmarks.same_tokens import first_differences
from echo2.engines.engine import Sample


def sample(*tokens: int) -> Sample:
    return Sample(tokens=list(tokens), turns=[len(tokens)], logprobs=[0.0] * len(tokens))


def test_a_rollout_is_compared_up_to_its_first_difference() -> None:
    together = [sample(1, 2, 3), sample(4, 5, 6, 7), sample(8)]
    alone = [sample(1, 2, 3), sample(4, 9, 9), sample(8)]
    assert first_differences(together, alone) == (3 + 2 + 1, 1)
