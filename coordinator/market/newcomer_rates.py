"""The rate at which a node without any measurement is offered. Pure. Rates are milli-RE per hour.

Rules
1. It is the median rate of the measured nodes of its engine class, else of all measured nodes, else `MOST` of the need.
2. It is raised to the rate at which the node's ask costs the reserve price, so that a dear and quick node is not left
   out by a guess; never above `MOST` of the need, nor above `MOST_RATE`. So a false ask of a newcomer gets no more than
   that share, and what it is paid for its first epoch is its ask at most.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from coordinator.market.epoch_terms import MOST_RATE
from coordinator.market.prices import MILLI

MOST: Final = Fraction(1, 10)
"""Of the need."""


def estimated_rate(ask: int, same: Sequence[int], all_: Sequence[int], need: int, reserve: int) -> int:
    """Return the rate. `ask`: nano units per hour. `same`, `all_`: rates of measured nodes of its class, and of all.
    `reserve`: nano units per RE, above 0."""
    most = max(1, min(MOST_RATE, int(MOST * need)))
    guess = median(same) or median(all_) or most
    affordable = math.ceil(Fraction(ask * MILLI, reserve))
    return max(1, min(most, max(guess, affordable)))


def median(rates: Sequence[int]) -> int:
    """Return the lower median of rates above 0; 0: there is none."""
    known = sorted(rate for rate in rates if rate > 0)
    return known[(len(known) - 1) // 2] if known else 0
