"""Choose the nodes that a run asks for work, by what a rollout of theirs costs. Pure, in integers and fractions.

Rates are in milli reference rollouts (milli-RE) per hour, asks in nano units of the run's currency per hour.

Rules
1. Where nobody asks for money, everybody is active: the window of leases alone paces.
2. A node's cost is rho = ask / rate, its rate being the lower bound of what was measured. Nodes above the reserve price
   are left out. An incumbent counts with 19/20 of its cost, so that nodes do not fetch weights again without need.
3. In order of that cost, ties by a lottery, the shortest beginning whose rates reach the need is active; those behind
   it, up to 3/2 of the need, stand by, each told its rank and the ask at which it would be active.
4. Half of the newcomers' share of the need is theirs in any case, by lottery, at the rates that they benchmarked: a run
   learns of them only by their work. While the measured nodes are short of the need, newcomers fill the gap, up to
   their whole share; a run without any measured node takes all that the need asks for.
5. Where measured nodes alone reach the need and others stand behind them, only newcomers that cost no more than the
   first of those take part: a dearer one would not be active once it is measured. So a key that is always new gets no
   better price than one that stays.

After ECHO-2, section 4 (arXiv 2602.02192), where the cheapest workers by unit throughput cost are activated.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

INCUMBENT_COST_FACTOR: Final = Fraction(19, 20)
STANDBY_NEED_FACTOR: Final = Fraction(3, 2)
"""Of the need."""


class Offer(NamedTuple):
    """A node's offer. `rate`: above 0. `newcomer`: its rate is benchmarked, not measured."""

    node: bytes
    ask: int
    rate: int
    incumbent: bool = False
    newcomer: bool = False
    counted: int | None = None
    """Of its rate, what counts towards the need, where its owner's share limits it (owner_cap.py); None: all."""

    @property
    def counted_rate(self) -> int:
        """Milli-RE per hour that count towards the need."""
        return self.rate if self.counted is None else self.counted

    @property
    def cost(self) -> Fraction:
        """Nano units per milli-RE."""
        return Fraction(self.ask, self.rate)

    @property
    def counted_cost(self) -> Fraction:
        """The cost that its place in the order follows from (rule 2)."""
        return self.cost * INCUMBENT_COST_FACTOR if self.incumbent else self.cost

    def fits(self, reserve: Fraction) -> bool:
        """Tell whether its cost is at most `reserve`, nano units per milli-RE."""
        return self.ask * reserve.denominator <= reserve.numerator * self.rate


class StandbyNode(NamedTuple):
    """A node that stands by. `rank`: rank from 1. `active_at`: the highest ask with which it would be active."""

    node: bytes
    rank: int
    active_at: int


class Activation(NamedTuple):
    """`active`: nodes, cheapest first, newcomers behind. `rate`: rate of them together. `short`: what the need lacks.
    `measured_need`: what of the need is asked of measured nodes."""

    active: list[bytes]
    standby: list[StandbyNode]
    rate: int
    short: int
    measured_need: Fraction = Fraction(0)


class ActivationTerms(NamedTuple):
    """`need`: gamma mu_min, in milli-RE per hour. `reserve`: the highest cost that is paid; None: any. `newcomers`:
    their share of the need. `beacon`: seed of the lottery, fixed before asks are known."""

    need: int
    reserve: Fraction | None
    newcomers: Fraction
    beacon: bytes


def activate_offers(offers: Iterable[Offer], terms: ActivationTerms) -> Activation:
    """Return who is active, and who stands by."""
    everybody = list(offers)
    if not any(offer.ask for offer in everybody):
        rate = sum(offer.rate for offer in everybody)
        return Activation([offer.node for offer in everybody], [], rate, max(0, terms.need - rate))
    fitting = [offer for offer in everybody if terms.reserve is None or offer.fits(terms.reserve)]
    measured = order_offers([offer for offer in fitting if not offer.newcomer], terms)
    limit = newcomers_limit(measured, terms)
    fresh = sorted(
        (one for one in fitting if one.newcomer and (limit is None or one.counted_cost <= limit)),
        key=lambda offer: lot(offer, terms.beacon),
    )
    share = terms.newcomers * terms.need if measured else Fraction(terms.need)
    first = _reaching(fresh, share / 2 if measured else share)
    still = Fraction(max(0, terms.need - _rate(fresh[:first])))
    count = _reaching(measured, still)
    gap = still - _rate(measured[:count])
    more = _reaching(fresh[first:], min(gap, share - _rate(fresh[:first]))) if gap > 0 else 0
    active = [*measured[:count], *fresh[: first + more]]
    rate = _rate(active)
    standby = [] if gap > 0 else _standby(measured, count, terms)
    return Activation([offer.node for offer in active], standby, rate, max(0, terms.need - rate), still)


def newcomers_limit(measured: Sequence[Offer], terms: ActivationTerms) -> Fraction | None:
    """Return the counted cost above which no newcomer takes part (rule 5); None: none. `measured`: measured in
    order."""
    enough = _reaching(measured, Fraction(terms.need))
    return None if enough == len(measured) else measured[enough].counted_cost


def order_offers(offers: Sequence[Offer], terms: ActivationTerms) -> list[Offer]:
    """Return offers in the order in which they are chosen (rule 3)."""
    lots = [lot(offer, terms.beacon) for offer in offers]
    places = sorted(zip(whole_costs(offers), lots, range(len(offers)), strict=True))
    return [offers[place] for _, _, place in places]


def whole_costs(offers: Sequence[Offer]) -> list[int]:
    """Return integers in the order of the counted costs, equal where those are: integers are sorted in a fraction of
    the time.

    Two costs that differ do so by at least 1 / (20 a x 20 b) for rates a and b, so that many times 2^-shift lie
    between them."""
    shift = 2 * (20 * max((offer.rate for offer in offers), default=1)).bit_length()
    times, divisor = INCUMBENT_COST_FACTOR.numerator, INCUMBENT_COST_FACTOR.denominator
    return [
        (offer.ask * (times if offer.incumbent else divisor) << shift) // (divisor * offer.rate) for offer in offers
    ]


def _standby(measured: Sequence[Offer], count: int, terms: ActivationTerms) -> list[StandbyNode]:
    """Return the nodes behind the active ones. Each would be active below the cost of the last active one: the nodes
    before that one do not reach the need."""
    if not count:
        return []
    last = measured[count - 1].counted_cost
    behind = measured[count : _reaching(measured, STANDBY_NEED_FACTOR * terms.need)]
    return [
        StandbyNode(offer.node, rank, int(last / (INCUMBENT_COST_FACTOR if offer.incumbent else 1) * offer.rate))
        for rank, offer in enumerate(behind, 1)
    ]


def _reaching(offers: Sequence[Offer], need: Fraction) -> int:
    """Return the length of the shortest beginning whose rates reach `need`; all, if none does."""
    rate, count, least = 0, 0, math.ceil(need)
    while rate < least and count < len(offers):
        rate, count = rate + offers[count].counted_rate, count + 1
    return count


def _rate(offers: Iterable[Offer]) -> int:
    return sum(offer.counted_rate for offer in offers)


def lot(offer: Offer, beacon: bytes) -> bytes:
    return hashlib.sha256(beacon + offer.node).digest()
