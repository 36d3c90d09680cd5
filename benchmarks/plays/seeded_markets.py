"""One-epoch markets drawn by seed, and the gain of an owner whose asks are not its costs. Pure.

A node's cost per hour is log-normal (sigma 0.35), and its throughput too (0.5), as in the design's simulation.

Rules
1. Prices are those of price_rules.py. A node's ask is its cost, unless it is one that tries others.
2. The profit of an owner is the pay of its nodes at full delivery, less their costs for that work.
3. The gain of asks is their profit less that of the true asks, over the true asks of the owner's nodes that try.
"""

import random
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from benchmarks.plays.price_rules import PriceRule, clear_by
from echo2.coordinator.market.activation import Offer
from echo2.coordinator.market.prices import MILLI, Market, PriceTerms
from echo2.coordinator.market.throughput import HOUR

NODES: Final = 40
RESERVE: Final = 5_000_000
"""Nano units per RE: three times the median node's cost."""
PLENTY: Final = 10**18
"""A budget that never binds."""
FALSE_PERCENT: Final = (50, 70, 85, 95, 99, 101, 105, 115, 130, 150, 175, 200, 250)
"""Asks that are tried, per cent of the cost."""


class MarketSetting(NamedTuple):
    """A kind of market. `need`: share of the supply. `budget`: over the pay of the costs alone; None: it does not bind.
    `owned`: nodes per owner. `large`: factor of the first node's throughput and cost."""

    rule: PriceRule = "pivot"
    cap: Fraction | None = None
    budget: Fraction | None = None
    owned: int = 1
    large: int = 1
    nodes: int = NODES
    need: Fraction = Fraction(1, 2)


class SeededMarket:
    """A market of a setting and a seed. `offers`: with true costs as asks."""

    def __init__(self, setting: MarketSetting, seed: int) -> None:
        self.setting = setting
        self._beacon = seed.to_bytes(32, "big")
        self.offers = drawn_offers(setting, seed)
        self._need = int(sum(offer.rate for offer in self.offers) * setting.need)
        self._owners = {offer.node: self.owner(place) for place, offer in enumerate(self.offers)}
        self._costs = {offer.node: offer.cost * MILLI for offer in self.offers}
        self.least = self._least()
        """Nano units: the cost of the cheapest nodes that reach the need."""
        self._budget = PLENTY if setting.budget is None else int(self.least * setting.budget)
        self.true = self.market({})

    def owner(self, place: int) -> bytes:
        """Return the tag of a node's owner."""
        return b"%d" % (place // self.setting.owned)

    def places_of(self, place: int) -> range:
        """Return the places of all nodes of a node's owner."""
        first = place - place % self.setting.owned
        return range(first, min(first + self.setting.owned, len(self.offers)))

    def market(self, percent: Mapping[int, int]) -> Market:
        """Return the market in which some nodes ask other than their costs. `percent`: place -> per cent of cost."""
        return self._cleared(percent, self.setting.rule, self._budget)

    def profit(self, market: Market, place: int) -> Fraction:
        """Return the profit of a node's owner, nano units per hour (rule 2)."""
        own = self.owner(place)
        return (
            sum(
                (
                    (node.price - self._costs[node.node]) * node.expected
                    for node in market.nodes
                    if self._owners[node.node] == own
                ),
                Fraction(0),
            )
            / MILLI
        )

    def gain(self, place: int, tries: Iterable[Mapping[int, int]]) -> Fraction:
        """Return the best gain of the owner of a node among tries, at least 0; per cent (rule 3)."""
        before, best = self.profit(self.true, place), Fraction(0)
        for percent in tries:
            asked = sum(self.offers[one].ask for one in percent)
            more = self.profit(self.market(percent), place) - before
            best = max(best, 100 * more / asked)
        return best

    def share(self, market: Market, place: int) -> Fraction:
        """Return the share of the need that a node's owner is paid for."""
        own = self.owner(place)
        expected = sum((node.expected for node in market.nodes if self._owners[node.node] == own), Fraction(0))
        return expected / max(1, self._need)

    @property
    def paid(self) -> Fraction:
        """The pay of all at their true asks, nano units per hour."""
        return sum((node.price * node.expected for node in self.true.nodes), Fraction(0)) / MILLI

    @property
    def overpaid(self) -> Fraction:
        """Per cent that the run pays beyond `least`."""
        return 100 * (self.paid / self.least - 1)

    def _least(self) -> Fraction:
        nodes = self._cleared({}, "paybid", PLENTY).nodes
        return sum((node.price * node.expected for node in nodes), Fraction(0)) / MILLI

    def _cleared(self, percent: Mapping[int, int], rule: PriceRule, budget: int) -> Market:
        offers = list(self.offers)
        for place, each in percent.items():
            offers[place] = offers[place]._replace(ask=offers[place].ask * each // 100)
        terms = PriceTerms(self._need, RESERVE, budget, HOUR, self._beacon, Fraction(0), self.setting.cap)
        return clear_by(rule, offers, terms, self._owners)


def drawn_offers(setting: MarketSetting, seed: int) -> list[Offer]:
    """Return the nodes of a market."""
    chance = random.Random(seed)
    offers = [
        Offer(
            place.to_bytes(4, "big"),
            int(1e8 * chance.lognormvariate(0, 0.35)),
            int(6e4 * chance.lognormvariate(0, 0.5)),
        )
        for place in range(setting.nodes)
    ]
    first = offers[0]
    return [first._replace(ask=setting.large * first.ask, rate=setting.large * first.rate), *offers[1:]]


def false_asks(place: int) -> list[Mapping[int, int]]:
    """Return the false asks that one node tries."""
    return [{place: percent} for percent in FALSE_PERCENT]


def one_asks_high(market: SeededMarket, place: int) -> list[Mapping[int, int]]:
    """Return the tries of an owner that raises the ask of one of its nodes, in order to raise the others' price."""
    return [{one: percent} for one in market.places_of(place) for percent in FALSE_PERCENT if percent > 100]


def all_ask_high(market: SeededMarket, place: int) -> list[Mapping[int, int]]:
    """Return the tries of an owner that raises the asks of all its nodes alike."""
    return [dict.fromkeys(market.places_of(place), percent) for percent in FALSE_PERCENT if percent > 100]
