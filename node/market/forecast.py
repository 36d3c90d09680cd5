"""The forecast of a node's earnings per hour, from its own last periods. Pure, without floats.

Rules
1. The interval needs no law of the amounts. If the next period is like the last n, it lies between the k-th smallest
   and the k-th largest of them with a chance of at least (n + 1 - 2k) / (n + 1). k is the greatest for which that is at
   least `RANGE_CHANCE`.
2. With fewer than `LEAST_PERIODS` periods there is no forecast. At most the newest `MOST_PERIODS` count.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

RANGE_CHANCE: Final = Fraction(4, 5)
LEAST_PERIODS: Final = 9
"""With so many periods the whole range has the chance `RANGE_CHANCE`."""
MOST_PERIODS: Final = 96


class Forecast(NamedTuple):
    """Amounts per hour, rounded down. `chance`: chance of the next period to lie between `low` and `high`. `periods`:
    that it rests on."""

    mean: int
    low: int
    high: int
    chance: Fraction
    periods: int


def forecast(rates: Sequence[Fraction]) -> Forecast | None:
    """Return the forecast (rule 1); None: too few periods. `rates`: rates per hour, oldest first."""
    ordered = sorted(rates[-MOST_PERIODS:])
    count = len(ordered)
    if count < LEAST_PERIODS:
        return None
    outside = max(1, int((count + 1) * (1 - RANGE_CHANCE) / 2))
    chance = Fraction(count + 1 - 2 * outside, count + 1)
    return Forecast(int(sum(ordered) / count), int(ordered[outside - 1]), int(ordered[-outside]), chance, count)
