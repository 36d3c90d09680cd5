"""Check that a program chooses tokens by the rule gumbel-splitmix64/1 (engines.sampling.sampling), from what it tells
of each token: the token, its log-probability, and the likeliest alternatives with theirs. No torch.

A token is the argmax of logits and noise, and log-probabilities are logits but for one number. So the token's
log-probability and noise must be at least those of each alternative. Of the tokens that are no alternatives nothing is
told. A program with another seed or another rule shows within a few tokens all the same, a small change of temperature
does not: the scorer's check, which knows all logits, stays the one that counts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from echo2.engines.engine import EngineError
from echo2.engines.sampling import sampling_reference

MARGIN_NATS: Final = 2e-3
"""Nats: the rounding of log-probabilities on their path here. An honest choice never loses by more."""
ALTERNATIVES: Final = 8
"""Alternatives that are requested per token."""


class ToldToken(NamedTuple):
    """A token, its log-probability, and that of each alternative. `token` may be among these."""

    token: int
    logprob: float
    alternatives: Mapping[int, float]


def missed_nats(told: ToldToken, seed: bytes, number: int) -> float:
    """Return by how many nats an alternative beats the token; 0 where none does. `number`: the token's within its
    rollout."""
    key = sampling_reference.key(seed, number)
    own = told.logprob + _noise(key, told.token)
    return max([0.0, *(value + _noise(key, token) - own for token, value in told.alternatives.items())])


def check(told: Sequence[ToldToken], seed: bytes, first: int, greedy: bool = False) -> None:
    """Check the tokens of a rollout from number `first` on. Raises EngineError."""
    for number, one in enumerate(told, first):
        if not math.isfinite(one.logprob) or any(map(math.isnan, one.alternatives.values())):  # NaN beats nothing
            raise EngineError("the weights give log-probabilities that are not finite")
        by = max([0.0, *(value - one.logprob for value in one.alternatives.values())])
        by = by if greedy else missed_nats(one, seed, number)
        if by > MARGIN_NATS:
            raise EngineError(
                f"the choice of token {number} does not follow the run's sampling rule: another token is ahead by "
                f"{by:.3g}"
            )


def _noise(key: int, token: int) -> float:
    return sampling_reference.gumbel(sampling_reference.bits(key, token))
