"""Compute small statistics over measurements of the run. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

SMOOTHING_WEIGHT: Final = 0.2
"""Weight of the newest value in a moving average."""
_Z_95: Final = 1.959964
"""97.5 % quantile of the normal distribution."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def share_bounds(share: float, count: int) -> tuple[float, float]:
    """Return the bounds of a share's 95 % confidence interval. `share`: share of `count` independent trials. Source:
    Wilson, Probable Inference, 1927, whose interval stays within 0 and 1."""
    if count < 1:
        return 0.0, 1.0
    weight = _Z_95**2 / count
    middle = (share + weight / 2) / (1 + weight)
    half = _Z_95 / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / count / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def moving_average(before: float | None, newest: float) -> float:
    """Return the exponential moving average including `newest`. `before`: the average so far; None: no value yet."""
    return newest if before is None else before + SMOOTHING_WEIGHT * (newest - before)


def union(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of intervals, so that overlapping leases count once."""
    total, end = 0, -math.inf
    for start, stop in sorted(intervals):
        if stop > end:
            total += stop - int(max(start, end))
            end = stop
    return total
