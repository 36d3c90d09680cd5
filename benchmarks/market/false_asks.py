"""The gain from a false ask, and the run's payments beyond the costs, in seeded markets of 40 nodes.

A node's cost per hour is log-normal (sigma 0.35) and its throughput too (0.5), as in the design's simulation; half of
the supply is needed. In each market some nodes try asks from half to two and a half times their cost while all others
ask their true cost. The gain is the best profit of the node's owner less the true ask's, over the node's cost. "Large":
one node has 15 times its throughput, so that the cap limits it; it is one of those that try.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from benchmarks.harness import bench
from coordinator.market.activation import Offer
from coordinator.market.owner_cap import CAP
from coordinator.market.prices import MILLI, Market, Mode, PriceTerms, cleared

NODES: Final = 40
TRIED: Final = 2
"""Nodes per market that try false asks."""
PERCENT: Final = (50, 70, 85, 95, 99, 101, 105, 115, 130, 150, 175, 200, 250)
HOUR: Final = 3_600_000
PLENTY: Final = 10**18
BAR: Final = 0.01
"""Per cent of the cost."""


class Setting(NamedTuple):
    """A row of the table. `budget`: over the pay of the costs alone; None: it does not bind. `owned`: nodes per owner.
    `large`: factor of the first node's throughput."""

    name: str
    mode: Mode
    cap: Fraction | None = None
    budget: Fraction | None = None
    owned: int = 1
    large: int = 1


SETTINGS: Final = (
    Setting("pivot", "pivot"),
    Setting("pivot, cap of 40 %", "pivot", CAP),
    Setting("pivot, large", "pivot", large=15),
    Setting("pivot, large, cap", "pivot", CAP, large=15),
    Setting("pivot, owners of 4 nodes", "pivot", owned=4),
    Setting("pivot, owners of 20 nodes, cap", "pivot", CAP, owned=20),
    Setting("pivot, budget binds", "pivot", budget=Fraction(9, 10)),
    Setting("pivot, cap, budget binds", "pivot", CAP, Fraction(9, 10)),
    Setting("uniform", "uniform"),
    Setting("paybid", "paybid"),
)


class Outcome(NamedTuple):
    """`gain`, `overpaid`: per cent, of each tried node and each market."""

    gain: list[float]
    overpaid: list[float]


def seeded(seed: int, large: int) -> list[Offer]:
    """Return the nodes of a market with their true costs as asks. `large`: as in `Setting`; it costs as much more."""
    chance = random.Random(seed)
    offers = [
        Offer(bytes([place]), int(1e8 * chance.lognormvariate(0, 0.35)), int(6e4 * chance.lognormvariate(0, 0.5)))
        for place in range(NODES)
    ]
    return [offers[0]._replace(ask=large * offers[0].ask, rate=large * offers[0].rate), *offers[1:]]


def owner(place: int, setting: Setting) -> bytes:
    """Return the tag of a node's owner."""
    return b"%d" % (place // setting.owned)


def market(offers: Sequence[Offer], setting: Setting, seed: int, budget: int) -> Market:
    """Return a market of an hour."""
    need = sum(offer.rate for offer in offers) // 2
    terms = PriceTerms(need, 5_000_000, budget, HOUR, bytes([seed]), Fraction(0), setting.mode, setting.cap)
    return cleared(offers, terms, {bytes([place]): owner(place, setting) for place in range(NODES)})


def profit(result: Market, costs: Mapping[bytes, Fraction], setting: Setting, place: int) -> Fraction:
    """Return the pay of a node's owner less its cost, at full delivery."""
    own = [node for node in result.nodes if owner(node.node[0], setting) == owner(place, setting)]
    return sum(((node.price - costs[node.node]) * node.expected for node in own), Fraction(0)) / MILLI


def studied(setting: Setting, markets: int) -> Outcome:
    """Return gains and overpayment over seeded markets."""
    gain, overpaid = [], []
    for seed in range(markets):
        offers = seeded(seed, setting.large)
        costs = {offer.node: offer.cost * MILLI for offer in offers}
        least = least_cost(offers, setting, seed)
        budget = PLENTY if setting.budget is None else int(least * setting.budget)
        true = market(offers, setting, seed, budget)
        if setting.budget is None:
            paid = sum((node.price * node.expected for node in true.nodes), Fraction(0)) / MILLI
            overpaid.append(float(100 * (paid / least - 1)))
        for place in [0, *random.Random(seed).sample(range(1, NODES), TRIED - 1)]:
            before = profit(true, costs, setting, place)
            best = max(
                profit(_with(offers, place, percent, setting, seed, budget), costs, setting, place)
                for percent in PERCENT
            )
            gain.append(float(100 * max(Fraction(0), best - before) / offers[place].ask))
    return Outcome(gain, overpaid)


def least_cost(offers: Sequence[Offer], setting: Setting, seed: int) -> Fraction:
    """Return the cost of the cheapest nodes that reach the need, paid exactly what they cost."""
    result = market(offers, setting._replace(mode="paybid"), seed, PLENTY)
    return sum((node.price * node.expected for node in result.nodes), Fraction(0)) / MILLI


def _with(offers: Sequence[Offer], place: int, percent: int, setting: Setting, seed: int, budget: int) -> Market:
    false = offers[place]._replace(ask=offers[place].ask * percent // 100)
    return market([*offers[:place], false, *offers[place + 1 :]], setting, seed, budget)


def claims(markets: int) -> list[bench.Claim]:
    """Print the table; return the claim."""
    outcomes = {setting.name: studied(setting, markets) for setting in SETTINGS}
    rows = [
        (name, statistics.mean(one.gain), statistics.quantiles(one.gain, n=20)[-1], max(one.gain),
         statistics.mean(one.overpaid) if one.overpaid else "-")
        for name, one in outcomes.items()
    ]  # fmt: skip
    print(
        f"{markets} markets of {NODES} nodes; {TRIED} of each try {len(PERCENT)} false asks; per cent of their cost\n"
    )
    bench.table(("price", "gain, mean", "p95", "greatest", "overpaid, mean"), rows)
    worst = statistics.mean(outcomes["pivot"].gain)
    capped = statistics.mean(outcomes["pivot, large, cap"].gain)
    return [
        bench.Claim("market false ask", worst, "the true ask (per cent of cost)", BAR, at_most=True),
        bench.Claim("market false ask, cap", capped, "the true ask (per cent of cost)", BAR, at_most=True),
    ]
