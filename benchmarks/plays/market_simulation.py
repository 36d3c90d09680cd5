"""An operator's settings of a market, tried on seeded populations: who works, what an epoch costs, what a false ask
gains. Pure.

Money is in nano units, work in milli-RE, rates in milli-RE per hour.

Rules
1. A population is drawn as in seeded_markets.py, and asks its costs. In each epoch some of its nodes are away. Speeds
   differ by a tenth between epochs.
2. All begin as newcomers with their rates benchmarked, and are measured by their work. The first `LEARNING` epochs are
   not counted: while few nodes are measured, they are paid the reserve price.
3. A node gets no further lease once its accepted work is what it is paid for in the epoch, as in a run
   (coordinator/epochs/lease_gate.py): an owner alone does the share of the need that its cap leaves it.
4. Where no budget is set, the row of half a budget has half of what the epochs as set cost.
"""

import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from benchmarks.plays.market_play import TURNAROUND, MarketPlay, PlayedEpoch, PlayTerms, steady
from benchmarks.plays.seeded_markets import MarketSetting, SeededMarket, drawn_offers, false_asks
from echo2.coordinator.market.epoch_terms import MOST_MONEY, PER_MILLE
from echo2.coordinator.market.prices import MILLI
from echo2.coordinator.market.throughput import HOUR, LeasedGroup
from echo2.protocol.money_text import rounded_text

LEARNING: Final = 8
TRIED: Final = 4
"""Nodes per seed that try false asks."""
MOST_TRIED: Final = 1000
"""Nodes of a market up to which false asks are tried: each costs a clearing."""


class Population(NamedTuple):
    """`ask`: median cost per hour. `rate`: median. `need`: share of the supply. `away`: share of the nodes that are not
    there in an epoch."""

    nodes: int
    ask: int
    rate: int
    need: Fraction
    away: Fraction


class TriedMarket(NamedTuple):
    """Means over epochs and seeds of a row. `price`: per RE. `pay`: of an epoch; `cost`: of the work done, to its
    nodes. `short`: share of the need that was not done. `binding`: share of the epochs. `gain`: of the best false ask,
    per cent of cost; None: not tried."""

    name: str
    nodes: float
    work: float
    price: float
    pay: float
    cost: float
    short: float
    binding: float
    gain: float | None

    @property
    def overpaid(self) -> float:
        """Per cent of pay beyond the costs."""
        return 100 * (self.pay / self.cost - 1) if self.cost else 0.0


Fleet = dict[str, tuple[int, int]]
"""Node -> (cost per hour, rate)."""


class _Counted(NamedTuple):
    nodes: int
    work: int
    pay: int
    cost: Fraction
    short: float
    binding: bool


def tried(population: Population, terms: PlayTerms, epochs: int, seeds: int) -> Iterator[TriedMarket]:
    """Yield the settings as they are, and then with one of them changed. `terms.need` is set from the population."""
    first = _row("as set", population, terms, epochs, seeds)
    yield first
    for name, changed in _variants(terms, first):
        yield _row(name, population, changed, epochs, seeds)


def _variants(terms: PlayTerms, first: TriedMarket) -> list[tuple[str, PlayTerms]]:
    rows = list[tuple[str, PlayTerms]]()
    for step in (Fraction(4, 5), Fraction(5, 4)):
        rows.append((f"reserve times {float(step):g}", terms._replace(reserve=max(1, int(terms.reserve * step)))))
    budget = terms.budget if terms.budget < MOST_MONEY else int(first.pay)
    rows.append(("half the budget", terms._replace(budget=budget // 2)))
    if terms.cap < PER_MILLE:
        rows.append(("no cap of owners", terms._replace(cap=PER_MILLE)))
    return rows


def _row(name: str, population: Population, terms: PlayTerms, epochs: int, seeds: int) -> TriedMarket:
    counted = [one for seed in range(seeds) for one in _played(population, terms, epochs, seed)]
    work, pay = statistics.mean(one.work for one in counted), statistics.mean(one.pay for one in counted)
    return TriedMarket(
        name, statistics.mean(one.nodes for one in counted), work, MILLI * pay / work if work else 0.0, pay,
        float(statistics.mean(one.cost for one in counted)), statistics.mean(one.short for one in counted),
        statistics.mean(one.binding for one in counted), _gain(population, terms, seeds),
    )  # fmt: skip


def _played(population: Population, terms: PlayTerms, epochs: int, seed: int) -> list[_Counted]:
    """Return the counted epochs of one seed."""
    fleet = _fleet(population, seed)
    need = int(sum(rate for _, rate in fleet.values()) * population.need)
    play, chance = MarketPlay(seed), random.Random(seed)
    play.benchmarked({node: rate for node, (_, rate) in fleet.items()})
    asks = {node: ask for node, (ask, _) in fleet.items()}
    counted = []
    for number in range(LEARNING + epochs):
        here = [node for node in fleet if chance.random() >= population.away] or list(fleet)
        speeds = {node: int(rate * chance.uniform(0.9, 1.1)) for node, (_, rate) in fleet.items()}
        one = play.epoch(
            terms._replace(need=need), here, asks if number == 0 else {},
            lambda node, at, speeds=speeds: _promised(  # type: ignore[misc]
                play.promise(node), steady(speeds[node], at, terms.milliseconds, _turnaround(terms))
            ),
        )  # fmt: skip
        if number >= LEARNING:
            counted.append(_count(one, fleet, Fraction(need * terms.milliseconds, HOUR)))
    return counted


def _promised(left: int, groups: Iterable[LeasedGroup]) -> Iterator[LeasedGroup]:
    """Yield groups until their work is `left`, milli-RE (rule 3); the last one is as much shorter as it is too long."""
    for one in groups:
        if one.weight < left:
            yield one
        elif left > 0 and one.received is not None:
            received = one.sent + (one.received - one.sent) * left // one.weight
            yield LeasedGroup(one.sent, received, one.expires, left, one.accepted)
        left -= one.weight


def _turnaround(terms: PlayTerms) -> int:
    return min(TURNAROUND, terms.milliseconds)


def _count(one: PlayedEpoch, fleet: Fleet, needed: Fraction) -> _Counted:
    """Return the figures of an epoch. `needed`: milli-RE in it."""
    rows = one.closed.nodes
    cost = sum((Fraction(row.work * fleet[row.node][0], fleet[row.node][1]) for row in rows), Fraction(0))
    work = sum(row.work for row in rows)
    short = max(Fraction(0), 1 - work / needed) if needed else Fraction(0)
    return _Counted(len(one.active), work, one.spent, cost, float(short), one.closed.binding)


def _fleet(population: Population, seed: int) -> Fleet:
    """Return the nodes of a seed."""
    drawn = drawn_offers(MarketSetting(nodes=population.nodes), seed)
    return {
        f"node{place:05}": (
            max(1000, offer.ask * population.ask // 10**8),
            max(MILLI, offer.rate * population.rate // 60_000),
        )
        for place, offer in enumerate(drawn)
    }


def _gain(population: Population, terms: PlayTerms, seeds: int) -> float | None:
    """Return the mean gain of the best false ask in one-epoch markets."""
    if population.nodes > MOST_TRIED:
        return None
    cap = None if terms.cap == PER_MILLE else Fraction(terms.cap, PER_MILLE)
    gains = list[float]()
    for seed in range(seeds):
        market = SeededMarket(MarketSetting(cap=cap, nodes=population.nodes, need=population.need), seed)
        places = random.Random(seed).sample(range(population.nodes), min(TRIED, population.nodes))
        gains += [float(market.gain(place, false_asks(place))) for place in places]
    return statistics.mean(gains)


def _money(amount: float) -> str:
    return rounded_text(Fraction(amount))


def lines(rows: Sequence[TriedMarket], milliseconds: int, currency: str) -> list[str]:
    """Return the table for people. Amounts in units of the currency."""
    head = (
        f"{'':<18} {'nodes':>6} {'RE/h':>8} {'per RE':>9} {'an epoch':>9} {'overpaid':>9} {'short':>6} {'binds':>6} "
        f"{'false ask':>10}"
    )
    told = [
        f"{one.name:<18} {one.nodes:>6.1f} {one.work * HOUR / milliseconds / MILLI:>8.0f} {_money(one.price):>9} "
        f"{_money(one.pay):>9} {one.overpaid:>7.0f} % {100 * one.short:>4.0f} % {100 * one.binding:>4.0f} % "
        + (f"{one.gain:>8.2f} %" if one.gain is not None else f"{'-':>10}")
        for one in rows
    ]
    foot = (
        f"per RE: mean price, {currency}; an epoch: its pay; overpaid: beyond the nodes' costs; short: of the need\n"
        "binds: epochs whose budget bound; false ask: what the best false ask of one node gains, of its cost, "
        "without a budget"
    )
    return [head, *told, foot]
