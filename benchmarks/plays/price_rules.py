"""Rules of prices that a run does not have, beside the one that it has: on the product's activation and budget. Pure.

Rules
1. `pivot`: the product's (coordinator/market/prices.py).
2. `uniform`: each measured node gets the cost of the first measured node behind the active ones, at most the reserve
   price; an incumbent that over 19/20.
3. `paybid`: each node gets its own cost.
4. `random`: the lottery takes the place of the order by cost, and each node gets its own cost.
5. `split`: all that are offered are active, and all work gets the budget over it, at most the reserve price.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final, Literal, get_args

from echo2.coordinator.market.activation import Activation, ActivationTerms, Offer, lot, order_offers
from echo2.coordinator.market.entries import EpochAnnounced
from echo2.coordinator.market.epoch_plan import EpochPlan
from echo2.coordinator.market.epoch_terms import price_terms
from echo2.coordinator.market.market_state import NO_BEACON, MarketState
from echo2.coordinator.market.owner_cap import cap_offers, most_per_owner
from echo2.coordinator.market.prices import (
    MILLI,
    Clearing,
    Market,
    PricedNode,
    PriceTerms,
    clearing,
    cost_of,
    delivered_weight,
    price_at,
    within_budget,
)

PriceRule = Literal["pivot", "uniform", "paybid", "random", "split"]
PRICE_RULES: Final = get_args(PriceRule)


def clear_by(rule: PriceRule, offers: Sequence[Offer], terms: PriceTerms, owners: Mapping[bytes, bytes]) -> Market:
    """Return the market by a rule of prices. `owners`: node -> tag."""
    if rule == "pivot":
        return within_budget(clearing(offers, terms, owners), terms)
    if rule == "split":
        return _split(offers, terms)
    whole = _by_lottery(offers, terms, owners) if rule == "random" else clearing(offers, terms, owners)
    prices = [offer.cost * MILLI for offer in whole.active]
    if rule == "uniform":
        behind = _first_behind(whole, offers, terms, owners)
        prices = [
            price if offer.newcomer else price_at(behind, offer, terms.reserve)
            for offer, price in zip(whole.active, prices, strict=True)
        ]
    cost = sum(cost_of(price, work) for price, work in zip(prices, whole.expected, strict=True))
    return within_budget(whole._replace(prices=prices, cost=cost), terms)


def _by_lottery(offers: Sequence[Offer], terms: PriceTerms, owners: Mapping[bytes, bytes]) -> Clearing:
    """Return the clearing of rule 4: that of offers whose costs are their places by lot."""
    fitting = [one for one in offers if one.fits(Fraction(terms.reserve, MILLI))]
    placed = placed_by_lot(fitting, terms.beacon)
    whole = clearing(placed, terms._replace(reserve=(len(placed) + 1) * MILLI), owners)
    true = {one.node: one for one in fitting}
    return whole._replace(active=[true[one.node]._replace(counted=one.counted) for one in whole.active])


def placed_by_lot(offers: Iterable[Offer], beacon: bytes) -> list[Offer]:
    """Return offers whose costs are their places by lot; of a newcomer, less than any."""
    return [
        one._replace(ask=1 if one.newcomer else place * one.rate, incumbent=False)
        for place, one in enumerate(sorted(offers, key=lambda one: lot(one, beacon)), 1)
    ]


def _first_behind(
    whole: Clearing, offers: Sequence[Offer], terms: PriceTerms, owners: Mapping[bytes, bytes]
) -> Fraction | None:
    """Return the counted cost of the first measured node that is not active; None: there is none."""
    reserve = Fraction(terms.reserve, MILLI)
    measured = [one for one in offers if one.fits(reserve) and not one.newcomer]
    ordered = order_offers(measured, ActivationTerms(terms.need, reserve, terms.newcomers, terms.beacon))
    chosen = {one.node for one in whole.active}
    counting = cap_offers(ordered, owners, most_per_owner(terms.need, terms.cap))
    return next((one.counted_cost for one in counting if one.node not in chosen and one.counted_rate > 0), None)


def _split(offers: Sequence[Offer], terms: PriceTerms) -> Market:
    """Return the market of rule 5, as if each node delivered its rate."""
    works = [delivered_weight(one.rate, terms.milliseconds) for one in offers]
    rate = sum(one.rate for one in offers)
    price = Fraction(terms.reserve)
    if rate:
        price = min(price, terms.budget * MILLI / sum(works, Fraction(0)))
    activation = Activation([one.node for one in offers], [], rate, max(0, terms.need - rate))
    nodes = [PricedNode(one.node, price, work, work) for one, work in zip(offers, works, strict=True)]
    return Market(activation, nodes, binding=price < terms.reserve)


class RuledState(MarketState):
    """A market's state whose epochs are priced by a rule, without run-offs."""

    def __init__(self, run: bytes, rule: PriceRule) -> None:
        super().__init__(run)
        self._rule = rule

    def plan_for(self, terms: EpochAnnounced, present: list[str], budget: int, now: int) -> EpochPlan:
        """Return the plan of the announced epoch by the rule."""
        plan = super().plan_for(terms, present, budget, now)
        owners = {node.encode(): tag for node, tag in self.owners.items()}
        priced = price_terms(terms, self.beacon or NO_BEACON, budget)
        return plan._replace(market=clear_by(self._rule, plan.offered, priced, owners), run_offs=[])
