"""Compute how likely groups come back in time, from the spread of turnarounds. Pure; times in a node's mean turnaround.

Rules
1. A turnaround over its node's mean is taken as log-normal with mean 1. `cv` is its coefficient of variation, measured
   over the last groups of the whole fleet. The sum of m turnarounds is taken as log-normal with mean m and coefficient
   cv / sqrt(m).
2. A server works on one group after another. Group m ends within x with the chance of rule 1. The number of groups in x
   is the sum over m of independent chances c: its expectation is sum c, its variance sum c (1 - c).
3. All values are read from tables on a grid of `GRID` per turnaround, up to `END`. Beyond `END` the expectation grows
   by 1 per turnaround, and the variance is cv sqrt(x / pi), its limit for a normal sum.
4. `cv` is rounded to 1 / `STEPS`, so that a process computes few tables, each within milliseconds.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

GRID: Final = 32
END: Final = 32
STEPS: Final = 32
MOST: Final = 2 * STEPS
FAR: Final = 4.0
"""Standard deviations beyond which a chance counts as 0 or 1."""

Floats = NDArray[np.float64]


def chance(x: float, cv: float, m: int = 1) -> float:
    """Return how likely m groups, one after the other, take at most x mean turnarounds (rule 1)."""
    if x <= 0:
        return 0.0
    variance = math.log1p(cv * cv / m)
    return 0.5 * (1 + math.erf((math.log(x / m) + variance / 2) / math.sqrt(2 * variance)))


class TurnaroundOdds:
    """The tables for one coefficient of variation."""

    def __init__(self, cv: float) -> None:
        self.cv = cv
        grid = np.arange(END * GRID + 1) / GRID
        self._chance = np.array([chance(x, cv) for x in grid])
        sums = [_sums(x, cv) for x in grid]
        self._groups = np.array([groups for groups, _ in sums])
        self._variance = np.array([variance for _, variance in sums])

    def within(self, x: Floats) -> Floats:
        """Return how likely one group takes at most x mean turnarounds, for each x."""
        result: Floats = self._chance[_index(x)]
        return result

    def groups(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the expected number of groups that a server ends in x mean turnarounds, and its variance, for each
        x."""
        index, beyond = _index(x), np.maximum(x, END)
        groups: Floats = self._groups[index] + (beyond - END)
        variance: Floats = self._variance[index] + self.cv * (np.sqrt(beyond / math.pi) - math.sqrt(END / math.pi))
        return groups, variance


def _index(x: Floats) -> NDArray[np.intp]:
    return np.minimum(np.maximum(x * GRID + 0.5, 0.0), END * GRID).astype(np.intp)


def _sums(x: float, cv: float) -> tuple[float, float]:
    """Return the sums of c and of c (1 - c) over m (rule 2)."""
    wide = FAR * cv * math.sqrt(x + 1) + 1
    first, last = max(1, math.floor(x - wide)), math.ceil(x + wide)
    chances = [chance(x, cv, m) for m in range(first, last + 1)]
    return first - 1 + sum(chances), sum(c * (1 - c) for c in chances)


@lru_cache(maxsize=MOST)
def _of_steps(steps: int) -> TurnaroundOdds:
    return TurnaroundOdds(steps / STEPS)


def odds(cv: float) -> TurnaroundOdds:
    """Return the tables for a coefficient of variation, rounded by rule 4 and within [1 / STEPS, MOST / STEPS]."""
    return _of_steps(min(MOST, max(1, round(cv * STEPS))))
