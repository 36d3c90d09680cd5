"""The price of each active node, and what it may deliver at it. Pure, in integers and fractions.

Prices are nano units per reference rollout (RE), rates milli-RE per hour, the budget nano units per epoch.

Rules
1. Activation chooses (activation.py), with what counts of each owner (owner_cap.py). While the measured nodes are short
   of the need, newcomers get what is lacking, beyond their share. A newcomer's price is its own cost.
2. A measured node's price is the highest cost at which it would still be active (critical_costs.py), at most the
   reserve price. It does not depend on the node's own ask and is not below its cost, so its true cost is the best ask
   of an owner of one node. Where the budget binds, and for an owner of several nodes, that is not so.
   benchmarks/plays/price_rules.py compares it with other rules.
3. The budget binds where the prices times what the active nodes deliver in an epoch, at their counted rates, exceed it.
   Then the largest beginning of k active nodes stays whose greatest cost is at most M / Q_k: the budget over what they
   deliver. None is paid more than M / Q_k per RE.
4. A node is paid for at most `most`: what it delivers at its counted rate; where the budget does not bind and its
   owner's share does not limit it, more by the factor budget over expected pay. So an epoch never costs more than its
   budget.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from echo2.coordinator.market.activation import (
    INCUMBENT_COST_FACTOR,
    Activation,
    ActivationTerms,
    Offer,
    activate_offers,
    lot,
    order_offers,
)
from echo2.coordinator.market.critical_costs import CriticalCosts
from echo2.coordinator.market.owner_cap import OWNER_CAP_SHARE, cap_offers, most_per_owner
from echo2.coordinator.market.throughput import HOUR

MILLI: Final = 1000
"""Milli-RE in a reference rollout."""


class PriceTerms(NamedTuple):
    """`need`: milli-RE per hour. `reserve`: price. `budget`: budget of the epoch. `milliseconds`: its planned length.
    `newcomers`: their share of the need. `cap`: cap of an owner; None: there is none."""

    need: int
    reserve: int
    budget: int
    milliseconds: int
    beacon: bytes
    newcomers: Fraction = Fraction(1, 20)
    cap: Fraction | None = OWNER_CAP_SHARE


class PricedNode(NamedTuple):
    """An active node. `price`: nano units per RE. `expected`: milli-RE that its counted rate delivers in the epoch.
    `most`: milli-RE that are paid at the price."""

    node: bytes
    price: Fraction
    expected: Fraction
    most: Fraction


class Market(NamedTuple):
    """The market of an epoch. `nodes`: those of `activation` that the budget leaves, in order. `binding`: whether the
    budget has left out a node or lowered a price."""

    activation: Activation
    nodes: list[PricedNode]
    binding: bool


class Clearing(NamedTuple):
    """The active nodes with their prices, without regard to the budget. `active`: in the order of `activation`.
    `expected`: milli-RE that each delivers at its counted rate; `cost`: cost of all that."""

    active: list[Offer]
    prices: list[Fraction]
    activation: Activation
    expected: list[Fraction]
    cost: int

    def within(self, terms: PriceTerms) -> list[bytes]:
        """Return the nodes that the budget leaves (rule 3), in order."""
        count = len(self.active) if self.cost <= terms.budget else _affordable(self.active, terms)[0]
        return [offer.node for offer in self.active[:count]]


def clearing(offers: Sequence[Offer], terms: PriceTerms, owners: Mapping[bytes, bytes]) -> Clearing:
    """Return active nodes with the prices that they would have with any budget. `owners`: node -> tag."""
    choice = ActivationTerms(terms.need, Fraction(terms.reserve, MILLI), terms.newcomers, terms.beacon)
    fitting = [offer for offer in offers if offer.fits(Fraction(terms.reserve, MILLI))]
    measured = order_offers([offer for offer in fitting if not offer.newcomer], choice)
    fresh = sorted((offer for offer in fitting if offer.newcomer), key=lambda offer: lot(offer, terms.beacon))
    most = most_per_owner(terms.need, terms.cap)
    counting = cap_offers([*measured, *fresh], owners, most)
    choice = choice._replace(newcomers=_newcomers(counting, terms))
    activation = activate_offers([offer for offer in counting if offer.counted_rate > 0], choice)
    measured = counting[: len(measured)]
    by_node = {offer.node: offer for offer in counting}
    active = [by_node[node] for node in activation.active]
    critical = CriticalCosts(measured, activation.measured_need, owners, most)
    places = {offer.node: place for place, offer in enumerate(measured)}
    prices = [
        offer.cost * MILLI if offer.newcomer else price_at(critical.of(places[offer.node]), offer, terms.reserve)
        for offer in active
    ]
    expected = [delivered_weight(offer.counted_rate, terms.milliseconds) for offer in active]
    cost = sum(cost_of(price, work) for price, work in zip(prices, expected, strict=True))
    return Clearing(active, prices, activation, expected, cost)


def _newcomers(counting: Sequence[Offer], terms: PriceTerms) -> Fraction:
    """Return the newcomers' share of the need. Half of it is theirs in any case: all that measured nodes lack of the
    need (rule 1)."""
    supply = sum(offer.counted_rate for offer in counting if not offer.newcomer)
    lacking = Fraction(max(0, terms.need - supply), max(1, terms.need))
    return max(terms.newcomers, 2 * lacking)


def price_at(counted_cost: Fraction | None, offer: Offer, reserve: int) -> Fraction:
    """Return the cost of a node whose counted cost is this one, at most the reserve price."""
    if counted_cost is None:
        return Fraction(reserve)
    times, divisor = counted_cost.numerator * MILLI, counted_cost.denominator
    if offer.incumbent:
        times, divisor = times * INCUMBENT_COST_FACTOR.denominator, divisor * INCUMBENT_COST_FACTOR.numerator
    return Fraction(times, divisor) if times < reserve * divisor else Fraction(reserve)


def delivered_weight(rate: int, milliseconds: int) -> Fraction:
    """Return the milli-RE that a rate delivers."""
    return Fraction(rate * milliseconds, HOUR)


def cost_of(price: Fraction, work: Fraction) -> int:
    """Return the pay of milli-RE at a price, rounded up: sums of fractions would grow with the number of nodes."""
    return -(-price.numerator * work.numerator // (price.denominator * work.denominator * MILLI))


def within_budget(clearing: Clearing, terms: PriceTerms) -> Market:
    """Return the market within its budget (rules 3 and 4)."""
    active, prices, activation, whole, cost = clearing
    if cost <= terms.budget:
        more = Fraction(terms.budget, cost) if cost else Fraction(1)
        rows = [
            PricedNode(offer.node, price, most, most * more if offer.counted is None else most)
            for offer, price, most in zip(active, prices, whole, strict=True)
        ]
        return Market(activation, rows, False)
    count, limit = _affordable(active, terms)
    rows = [
        PricedNode(offer.node, min(price, limit), most, most)
        for offer, price, most in zip(active[:count], prices, whole, strict=False)
    ]
    return Market(activation, rows, True)


def _affordable(active: Sequence[Offer], terms: PriceTerms) -> tuple[int, Fraction]:
    """Return the number of nodes that stay where the budget binds, and the price per RE that none exceeds (rule 3)."""
    count, limit = 0, Fraction(0)
    rate, dearest = 0, Fraction(0)
    for place, offer in enumerate(active, 1):
        rate, dearest = rate + offer.counted_rate, max(dearest, offer.cost * MILLI)
        share = terms.budget * MILLI / delivered_weight(rate, terms.milliseconds)
        if dearest <= share:
            count, limit = place, share
    return count, limit
