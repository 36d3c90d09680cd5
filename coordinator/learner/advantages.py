"""Compute advantages: the reward of a rollout relative to those of its group.

Rules
1. A group whose rewards are all equal has no signal: its advantages are exactly 0, and it is counted.
2. A group's advantages depend on that group alone, never on the rest of the batch.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_TINY = 1e-6


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


def _group_normalised(rewards: Sequence[float]) -> list[float]:
    """Return (r - mean) / (std + 1e-6), with the sample standard deviation. DeepSeekMath (arXiv 2402.03300), 4.1.2."""
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    return [(reward - mean) / (math.sqrt(variance) + _TINY) for reward in rewards]


def _mean_only(rewards: Sequence[float]) -> list[float]:
    """Return r - mean, without the division by the deviation, which favours nearly solved and nearly hopeless groups.
    "Dr. GRPO" (arXiv 2503.20783), 3.2."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


KINDS: dict[str, Callable[[Sequence[float]], list[float]]] = {"group": _group_normalised, "mean": _mean_only}
