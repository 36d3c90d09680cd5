"""The rate at which a node without any measurement is offered. Pure. Rates are milli-RE per hour.

Rules
1. It is the median rate of the measured nodes of its engine class, else of all measured nodes, else
   `MOST_NEWCOMER_SHARE` of the need.
2. It is raised to the rate at which the node's ask costs the highest price of newcomers, so that a dear and quick node
   is not left out by a guess; never above `MOST_NEWCOMER_SHARE` of the need, nor above `MOST_RATE`. So a false ask of a
   newcomer gets no more than that share, and what it is paid for its first epoch is its ask at most.
3. The highest price of newcomers is the reserve price, or, where measured nodes suffice, the cost of the first one that
   is not needed (activation.py, rule 5).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from echo2.coordinator.market.activation import ActivationTerms, Offer, newcomers_limit, order_offers
from echo2.coordinator.market.epoch_terms import MOST_RATE
from echo2.coordinator.market.prices import MILLI

MOST_NEWCOMER_SHARE: Final = Fraction(1, 10)
"""Of the need."""


def highest_price(offered: Sequence[Offer], need: int, reserve: int) -> Fraction:
    """Return the highest price of newcomers, nano units per RE (rule 3)."""
    terms = ActivationTerms(need, None, Fraction(0), b"")
    fitting = [one for one in offered if not one.newcomer and one.cost * MILLI <= reserve]
    limit = newcomers_limit(order_offers(fitting, terms), terms)
    return Fraction(reserve) if limit is None else min(Fraction(reserve), limit * MILLI)


def estimated_rate(ask: int, same: Sequence[int], all_: Sequence[int], need: int, price: Fraction) -> int:
    """Return the rate. `ask`: nano units per hour. `same`, `all_`: rates of measured nodes of its class, and of all.
    `price`: the highest of newcomers, nano units per RE."""
    most = max(1, min(MOST_RATE, int(MOST_NEWCOMER_SHARE * need)))
    guess = median(same) or median(all_) or most
    affordable = math.ceil(ask * MILLI / price)
    return max(1, min(most, max(guess, affordable)))


def median(rates: Sequence[int]) -> int:
    """Return the lower median of rates above 0; 0: there is none."""
    known = sorted(rate for rate in rates if rate > 0)
    return known[(len(known) - 1) // 2] if known else 0
