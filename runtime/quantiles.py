"""Compute small statistics over measurements of the run. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

SMOOTHING_WEIGHT: Final = 0.2
"""Weight of the newest value in a moving average."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


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
