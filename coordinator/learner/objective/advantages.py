"""Compute advantages: the reward of a rollout relative to those of its group.

Rules
1. A group whose rewards are all equal has no signal: its advantages are exactly 0, and it is counted.
2. A group's advantages depend on that group alone, never on the rest of the batch.
3. A group's *signal* is its mean absolute advantage when normalised by mean and deviation: 0 where all rewards are
   equal, at most 1, and largest where half of the rollouts succeed. It has no unit, so groups of several tasks compare.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_TINY_DEVIATION = 1e-6


class Advantages(NamedTuple):
    """The advantages of a batch. `values[group][sample]`: in the order of the rewards. `zero_variance`: number of
    groups without signal."""

    values: list[list[float]]
    zero_variance: int


def compute(rewards: Sequence[Sequence[float]], kind: str) -> Advantages:
    """Compute the advantages of every group's rewards. `kind`: one of KINDS.

    Raises ValueError for an unknown kind or for a reward that is not finite.
    """
    if kind not in KINDS:
        raise ValueError(f"advantage {kind!r} is unknown: choose one of {', '.join(sorted(KINDS))}")
    if not all(math.isfinite(reward) for group in rewards for reward in group):
        raise ValueError("a reward is not a finite number")
    flat = [has_no_signal(group) for group in rewards]
    values = [[0.0] * len(group) if empty else KINDS[kind](group) for group, empty in zip(rewards, flat, strict=True)]
    return Advantages(values, sum(flat))


def has_no_signal(rewards: Sequence[float]) -> bool:
    """Tell whether all rewards of a group are equal (also for none or one)."""
    return not rewards or min(rewards) == max(rewards)


def signal_of(rewards: Sequence[float]) -> float:
    """Return the signal of a group (rule 3), with the deviation of all its rewards. 0 for rewards that are not
    finite."""
    if has_no_signal(rewards) or not all(math.isfinite(reward) for reward in rewards):
        return 0.0
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / len(rewards)
    return sum(abs(reward - mean) for reward in rewards) / len(rewards) / (math.sqrt(variance) or 1.0)


def _group_normalised(rewards: Sequence[float]) -> list[float]:
    """Return (r - mean) / (std + 1e-6), with the sample standard deviation. DeepSeekMath (arXiv 2402.03300), 4.1.2."""
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    return [(reward - mean) / (math.sqrt(variance) + _TINY_DEVIATION) for reward in rewards]


def _mean_only(rewards: Sequence[float]) -> list[float]:
    """Return r - mean, without the division by the deviation, which favours nearly solved and nearly hopeless groups.
    "Dr. GRPO" (arXiv 2503.20783), 3.2."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


KINDS: dict[str, Callable[[Sequence[float]], list[float]]] = {"group": _group_normalised, "mean": _mean_only}
