"""Measure the market's estimate of a node that works on several groups at once, and the costs that follow:
`python -m benchmarks.market --places`.

Rules
1. A node has `PLACES` places, and computes as fast at each while the others work: its device batches. A group takes it
   `TURNAROUND`. Its capacity is its rate with all places in use.
2. First table: the product's epochs (benchmarks/plays/market_play.py). As many groups are on their way as the need
   over `GAMMA` takes by Little's law, as the learner draws no more, and the active nodes have equal shares of them, at
   most `PLACES` each: the window of leases paces. Groups take up to `SPREAD` more or less. For an hour the learner
   needs half. All measures count by their lower bounds (throughput.py, rule 2).
3. Second table: one node whose share changes, or which tries to be measured at more than its capacity.
4. Measures: `union`, the product's (coordinator/market/throughput.py); `ends`, the greatest of the last `MEMORY`
   epochs' work over what they add to the union; `stretch`, the same, but a group's work is spread over the time of its
   lease, and counts in the quarters in which that lies; `places`, work over the summed time of leases, times the most
   leases that were open at a time.
"""

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import reduce
from itertools import accumulate, chain
from typing import Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.plays.market_play import LIFE, QUARTER, TURNAROUND, MarketPlay, PlayTerms
from benchmarks.plays.seeded_markets import RESERVE, MarketSetting, drawn_offers
from echo2.coordinator.market.activation import Offer
from echo2.coordinator.market.leased_time import Interval, lease_interval, length, union
from echo2.coordinator.market.throughput import HOUR, NEW_NODE, LeasedGroup, Throughput, measure_node

CAPACITY: Final = 800_000
"""Milli-RE per hour of the node of the second table, in the end."""
PLACES: Final = 8
GAMMA: Final = Fraction(11, 10)
"""The default of `run.gamma`."""
SPREAD: Final = 0.4
NODES: Final = 24
NEED: Final = Fraction(1, 3)
"""Of the capacity of all nodes."""
EPOCHS: Final = 32
LOW: Final = range(8, 12)
"""Epochs in which the learner needs half."""
COUNTED: Final = 8
"""Last epochs that are counted."""
MEMORY: Final = 8
SEEDS: Final = 5
LEAST_COVERED: Final = QUARTER // 3
"""Milliseconds of an epoch in which a node must have had leases for `stretch`."""

History = Sequence[Sequence[LeasedGroup]]
"""The ends of a node's leases, by epoch."""
Measure = Callable[[History, Throughput], int]
"""Returns the rate of a node, milli-RE per hour. It is given what the product measured, too."""


def by_union(history: History, known: Throughput) -> int:
    return int(known.mean)


def by_ends(history: History, known: Throughput) -> int:
    measured, rates = NEW_NODE, [0]
    for records in history:
        measured, grown = measure_node(measured, records)
        rates.append(sum(one.weight for one in records) * HOUR // max(1, grown))
    return max(rates[-MEMORY:])


def by_stretch(history: History, known: Throughput) -> int:
    work, times = defaultdict[int, Fraction](Fraction), defaultdict[int, list[Interval]](list)
    for one in chain.from_iterable(history[-MEMORY:]):
        for epoch, part in _parts(_interval(one)):
            work[epoch] += Fraction(one.weight * length([part]), length([_interval(one)]))
            times[epoch].append(part)
    covered = {epoch: length(union(parts)) for epoch, parts in times.items()}
    return max((int(work[epoch] * HOUR / ms) for epoch, ms in covered.items() if ms >= LEAST_COVERED), default=0)


def by_places(history: History, known: Throughput) -> int:
    records = [*chain.from_iterable(history[-MEMORY:])]
    intervals = [_interval(one) for one in records]
    marks = sorted([*((one.begin, 1) for one in intervals), *((one.end, -1) for one in intervals)])
    most = max(accumulate(step for _, step in marks), default=0)
    return most * sum(one.weight for one in records) * HOUR // max(1, length(intervals))


MEASURES: Final[dict[str, Measure]] = {
    "union": by_union,
    "ends": by_ends,
    "stretch": by_stretch,
    "places": by_places,
}


def _interval(one: LeasedGroup) -> Interval:
    return lease_interval(one.sent, one.received, one.expires)


def _parts(interval: Interval) -> Iterator[tuple[int, Interval]]:
    """Yield the parts of an interval in each quarter of an hour."""
    at, end = interval
    while at < end:
        stop = min(end, (at // QUARTER + 1) * QUARTER)
        yield at // QUARTER, Interval(at, stop)
        at = stop


def chains(
    capacity: int, places: int, begin: int, milliseconds: int = QUARTER, chance: random.Random | None = None
) -> list[LeasedGroup]:
    """Return the groups of a node that works on `places` at a time, one after the other at each, in the order of their
    ends. `chance`: draws how long each takes; None: all alike."""
    weight, ends = capacity * TURNAROUND // (PLACES * HOUR), list[LeasedGroup]()
    for _ in range(places):
        at = begin
        while True:
            took = int(TURNAROUND * (1.0 if chance is None else chance.uniform(1 - SPREAD, 1 + SPREAD)))
            if at + took > begin + milliseconds:
                break
            ends.append(LeasedGroup(at, at + took, at + LIFE, weight, True))
            at += took
    return sorted(ends, key=lambda one: _interval(one).end)


class Market(NamedTuple):
    """Means over the last epochs. `active`: nodes. `work`: share of the need. `pay`: over the costs of the cheapest
    nodes that could make the work. `measured`: over the capacity, of the active nodes."""

    active: float
    work: float
    pay: float
    measured: float


def market(measure: Measure, seed: int) -> Market:
    """Play a market whose nodes are measured so."""
    offers = {f"node{number:03}": one for number, one in enumerate(drawn_offers(MarketSetting(nodes=NODES), seed))}
    capacity = {name: one.rate for name, one in offers.items()}
    whole = int(sum(capacity.values()) * NEED)
    chance = random.Random(seed)
    play, history = MarketPlay(seed), defaultdict[str, list[list[LeasedGroup]]](list)
    play.benchmarked(capacity)
    least = _least(list(offers.values()), whole)
    rows = list[Market]()
    for number in range(EPOCHS):
        need = whole // 2 if number in LOW else whole
        kept = dict(play.state.measurements)
        for name, one in kept.items():
            play.state.measurements[name] = _stated(one, measure(history[name], one))
        opened = play.open(
            PlayTerms(need, RESERVE), capacity, {name: one.ask for name, one in offers.items()} if not number else {}
        )
        measured = [float(play.state.measurements[name].mean) / capacity[name] for name in play.active if name in kept]
        play.state.measurements |= kept
        for name, places in _shares(need / GAMMA, capacity, play.active).items():
            ends = chains(capacity[name], places, opened, chance=chance)
            history[name].append(ends)
            play.ends(name, ends)
        closed = play.close(opened + QUARTER)
        work = sum(row.work for row in closed.closed.nodes)
        share, cost = work * HOUR / (need * QUARTER), least * work / whole
        rows.append(Market(len(closed.active), share, closed.spent / cost, statistics.mean(measured or [1.0])))
    return Market(*(statistics.mean(column) for column in zip(*rows[-COUNTED:], strict=True)))


def _stated(known: Throughput, rate: int) -> Throughput:
    """Return a measurement of this rate."""
    return known._replace(work=rate, leased=HOUR) if known.groups else known


def _least(offers: Sequence[Offer], need: int) -> float:
    """Return nano units per hour of the cheapest nodes that reach a need, by their capacities."""
    left, cost = need, Fraction(0)
    for one in sorted(offers, key=lambda offer: offer.cost):
        part = min(left, one.rate)
        left, cost = left - part, cost + one.cost * part
    return float(cost)


def _shares(need: Fraction, capacity: dict[str, int], active: Sequence[str]) -> dict[str, int]:
    """Return the places in use of each active node (rule 2)."""
    mean = sum(capacity[name] for name in active) / len(active)
    left = round(float(need) / mean * PLACES)
    shares = dict.fromkeys(active, 0)
    while left > 0 and min(shares.values()) < PLACES:
        for name in active:
            if left > 0 and shares[name] < PLACES:
                shares[name], left = shares[name] + 1, left - 1
    return shares


def show() -> None:
    """Print both tables."""
    rows = []
    for name, measure in MEASURES.items():
        each = [market(measure, seed) for seed in range(SEEDS)]
        rows.append((name, *(f"{statistics.mean(column):.2f}" for column in zip(*each, strict=True))))
    bench.table(("measure", f"active of {NODES}", "work of need", "pay of least cost", "measured of capacity"), rows)
    print()
    bench.table(
        ("a node that", *MEASURES),
        [
            (what, *(f"{measure(history, known(history)) / CAPACITY:.2f}" for measure in MEASURES.values()))
            for what, history in HISTORIES.items()
        ],
    )
    print("measured: mean of the active nodes; second table: the rate measured over the node's capacity in the end")


def known(history: History) -> Throughput:
    """Return what the product measures of a node."""
    return reduce(lambda known, records: measure_node(known, records).throughput, history, NEW_NODE)


def _hoards() -> list[LeasedGroup]:
    """Return an epoch of a node of one place, which takes `PLACES` leases at a time and computes one by one."""
    weight, ends = CAPACITY * TURNAROUND // HOUR, list[LeasedGroup]()
    for at in range(0, QUARTER - PLACES * TURNAROUND + 1, PLACES * TURNAROUND):
        done = [at + (place + 1) * TURNAROUND for place in range(PLACES)]
        ends += [LeasedGroup(at, end, at + 2 * PLACES * TURNAROUND, weight, True) for end in done]
    return ends


def _one_by_one(begin: int) -> list[LeasedGroup]:
    weight = CAPACITY * TURNAROUND // HOUR
    return [
        LeasedGroup(at, at + TURNAROUND, at + LIFE, weight, True) for at in range(begin, begin + QUARTER, TURNAROUND)
    ]


def _withholds() -> list[list[LeasedGroup]]:
    """Return two epochs of a node that hands in the groups of one place in time, and all others in the next epoch."""
    late = [
        LeasedGroup(one.sent, QUARTER + 1_000, QUARTER + LIFE, one.weight, True)
        for one in chains(CAPACITY, PLACES - 1, 0)
    ]
    return [chains(CAPACITY, 1, 0), late]


def _later(ends: Iterable[LeasedGroup], epochs: int) -> list[LeasedGroup]:
    by = epochs * QUARTER
    return [LeasedGroup(one.sent + by, _interval(one).end + by, one.expires + by, one.weight, True) for one in ends]


def _epochs(places: Sequence[int]) -> list[list[LeasedGroup]]:
    return [chains(CAPACITY, count, number * QUARTER) for number, count in enumerate(places)]


HISTORIES: Final[dict[str, History]] = {
    "has leases for all 8 places": _epochs([8] * 8),
    "has leases for 2": _epochs([2] * 8),
    "had leases for 8 for an epoch, then for 2": _epochs([8, *[2] * 7]),
    "has one place, hoards 8 leases, then takes one": [_hoards(), *(_one_by_one(n * QUARTER) for n in range(1, 8))],
    "hands in 7 of 8 groups an epoch later": _withholds(),
    "had a machine of 8 times the speed for an epoch": [
        chains(8 * CAPACITY, PLACES, 0),
        *(_later(chains(CAPACITY, PLACES, 0), number) for number in range(1, 8)),
    ],
}
