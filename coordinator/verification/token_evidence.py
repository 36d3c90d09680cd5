"""The comparison of one sampled token with the scorer's pass, in integers. Pure.

Rules
1. A token has a gap bin: by how much the runner-up lies behind the seeded choice, both by the scorer. The gap is known
   before the node's choice is, and says how easily honest rounding changes the choice.
2. Values are rounded down from float32 by powers of two, so every machine computes the same integers.
3. A statistic maps a token to a value from 0 to 1, in units of 2^-32, or leaves it out. The selection of tokens is
   known before the node's choice, except for `end` and `raising`.
4. Within a bin the gaps are spread evenly, whatever the text: noise and logits have no preferred distance. So bins may
   be wide, which leaves more tokens to each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from echo2.engines.engine import Sample, SampleScore
from echo2.tasks.task import sampled_mask
from echo2.tasks.turn_ends import Ends, end_mask

ONE: Final = 1 << 32
"""The unit of values and tables: 1.0."""
TOKEN: Final = np.dtype([("gap", "u1"), ("flags", "u1"), ("margin", "<u2"), ("drift", "<i2")])
"""`gap`: index of its bin. `flags`: a sum of the constants below. `margin`: units of 2^-14 nats, below 4 nats.
`drift`: claimed minus scored log-probability, units of 2^-16 nats, from -0.5 to 0.5 nats."""
DIFFERS, START, END, RAISING = 1, 2, 4, 8
"""Flags. `DIFFERS`: not the seeded choice. `START`: among the first `START_TOKENS` sampled tokens of its rollout.
`END`: end-of-sequence. `RAISING`: the rollout's reward is above its group's mean."""
START_TOKENS: Final = 50
MOST_MARGIN: Final = (1 << 16) - 1
"""Units of 2^-14 nats."""
MOST_DRIFT: Final = (1 << 15) - 1
"""Units of 2^-16 nats."""
GAP_UNIT: Final = 2.0**-16
"""Nats."""
GAP_EDGES: Final = tuple(4**power for power in range(2, 9))
"""Lower edges of all gap bins but the first, units of `GAP_UNIT`: from 2^-12 nats to 1 nat, times 4 each."""
BINS: Final = len(GAP_EDGES) + 1

Values = NDArray[np.int64]
TokenArray = NDArray[Any]
"""An array of `TOKEN`."""
Statistic = Callable[[TokenArray], tuple[Values, NDArray[np.bool_]]]
"""Returns (value of each token in units of 2^-32, whether the token counts)."""


class Incomparable(ValueError):
    """The scorer's values are not one finite number per sampled token, so they say nothing about the node."""


def compare_group(
    samples: Sequence[Sample], scores: Sequence[SampleScore], rewards: Sequence[float], ends: Ends
) -> TokenArray:
    """Compare the sampled tokens of a group with the scorer's values, in the order of its samples. `rewards`: rewards
    of each sample. Raises `Incomparable`."""
    average = sum(rewards) / max(1, len(rewards))
    parts = [np.zeros(0, TOKEN)]
    for sample, score, reward in zip(samples, scores, rewards, strict=True):
        chosen = np.asarray(sample.tokens)[np.asarray(sampled_mask(sample.turns))]
        values = [np.asarray(one, np.float32) for one in (sample.logprobs, score.logprobs, score.margins, score.gaps)]
        if any(len(one) != len(chosen) or not np.isfinite(one).all() for one in values):
            raise Incomparable("the scorer's values are not one finite number per sampled token")
        parts.append(compare_tokens(*values, ends=end_mask(chosen, ends), raising=reward > average))
    return np.concatenate(parts)


def compare_tokens(
    claimed: NDArray[np.float32],
    scored: NDArray[np.float32],
    margins: NDArray[np.float32],
    gaps: NDArray[np.float32],
    *,
    ends: NDArray[np.bool_],
    raising: bool,
) -> TokenArray:
    """Compare the sampled tokens of one rollout with the scorer's values, all finite, in nats.

    `claimed`, `scored`: log-probabilities. `ends`: whether the token is end-of-sequence. `raising`: as `RAISING`."""
    tokens = np.zeros(len(claimed), TOKEN)
    tokens["gap"] = np.searchsorted(GAP_EDGES, _units(gaps, 16, 0, 1 << 17), side="right")
    tokens["margin"] = _units(margins, 14, 0, MOST_MARGIN)
    tokens["drift"] = _units(np.asarray(claimed, np.float64) - scored, 16, -(1 << 15), MOST_DRIFT)
    tokens["flags"] = (np.asarray(margins) > 0) * DIFFERS + np.asarray(ends) * END + raising * RAISING
    tokens["flags"][:START_TOKENS] |= START
    return tokens


def _units(values: NDArray[Any], power: int, least: int, most: int) -> Values:
    """Return floor(values * 2^power) from `least` to `most`."""
    return np.clip(np.floor(np.asarray(values, np.float64) * 2.0**power), least, most).astype(np.int64)


def _differs(tokens: TokenArray) -> Values:
    return (tokens["flags"] & DIFFERS).astype(np.int64) << 32


def _all(values: Callable[[TokenArray], Values]) -> Statistic:
    return lambda tokens: (values(tokens), np.ones(len(tokens), np.bool_))


def _differs_where(flag: int) -> Statistic:
    return lambda tokens: (_differs(tokens), (tokens["flags"] & flag) > 0)


STATISTICS: Final[Mapping[str, Statistic]] = {
    "differs": _all(_differs),
    "margin": _all(lambda tokens: np.minimum(tokens["margin"].astype(np.int64), 1 << 13) << 19),
    "drift": _all(lambda tokens: np.abs(tokens["drift"].astype(np.int64)) << 17),
    "above": _all(lambda tokens: (tokens["drift"].astype(np.int64) + (1 << 15)) << 16),
    "below": _all(lambda tokens: ((1 << 15) - tokens["drift"].astype(np.int64)) << 16),
    "start": _differs_where(START),
    "end": _differs_where(END),
    "raising": _differs_where(RAISING),
}
"""The statistics per token. differs: 1 where the token is not the seeded choice. margin: by how much it misses, as a
share of 0.5 nats. drift: the difference of the log-probabilities, as a share of 0.5 nats; above and below: the same
with its sign, 0.5 where there is none. start, end, raising: `differs` among the tokens with that flag, by its table:
an honest node's rounding knows neither the place nor the reward."""
