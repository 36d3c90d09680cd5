"""The close of an epoch of 10,000 nodes and the opening of the next one, against a bare sort of the same exact costs.

Timed: measurement, pay, vesting, release, activation and prices, with their entries made, encoded, and read again by
the state. The anchor sorts (cost as a fraction, lot) of the same nodes, which are given.
"""

import copy
import random
import statistics
from collections import defaultdict
from functools import partial
from typing import Final

import msgspec

from benchmarks.harness import bench
from echo2.coordinator.market.activation import lot
from echo2.coordinator.market.entries import EpochAnnounced, NewEntry
from echo2.coordinator.market.epoch_plan import offers
from echo2.coordinator.market.epochs import announce, close_epoch, draw, open_epoch, release, vest
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.market.throughput import LeasedGroup, Throughput, measure_node
from echo2.ledger.ledger_entries import Entry, Posting

NODES: Final = 10_000
ROUNDS: Final = 5
QUARTER: Final = 900_000
BEACON: Final = bytes(32)
BAR: Final = 30.0


def taken(state: MarketState, new: NewEntry | None) -> None:
    """Let the state read an entry as the ledger would hand it over."""
    if new is not None:
        postings = tuple(Posting(*one) for one in new.postings)
        state.take(Entry(0, new.at, new.kind, new.key, postings, msgspec.msgpack.encode(new.facts), b""))


def terms(epoch: int, at: int, rates: int) -> EpochAnnounced:
    return EpochAnnounced(
        epoch=epoch, closes=at + 1, milliseconds=QUARTER, need=rates // 2, reserve=10**9, budget=10**17,
        newcomers=50, cap=400, run_off=QUARTER,
    )  # fmt: skip


def at_work(nodes: int) -> MarketState:
    """Return a market of measured nodes whose second epoch is open and has work: three groups of each active node."""
    chance, state = random.Random(3), MarketState(bytes(32))
    names = [f"node{place}" for place in range(nodes)]
    for name in names:
        first = [record(chance, number * 20_000) for number in range(40)]
        state.measurements[name] = measure_node(Throughput(), first).throughput
        state.asks[name] = chance.randint(10**7, 10**9)
    rates = sum(one.lower for one in state.measurements.values())
    at = 3_600_000
    for epoch in (1, 2):
        taken(state, announce(state, at, terms(epoch, at, rates)))
        taken(state, draw(state, at + 2, BEACON))
        taken(state, open_epoch(state, at + 2, names))
        assert state.open is not None
        for node in state.open.plan.market.nodes:
            records = [record(chance, at + number * 20_000) for number in range(3)]
            state.records[node.node.decode()] = records
        if epoch == 1:
            at += QUARTER
            taken(state, close_epoch(state, at))
    taken(state, announce(state, at + QUARTER - 5, terms(3, at + QUARTER - 5, rates)))
    taken(state, draw(state, at + QUARTER - 3, BEACON))
    return state


def record(chance: random.Random, sent: int) -> LeasedGroup:
    return LeasedGroup(sent, sent + chance.randint(15_000, 25_000), sent + 600_000, chance.randint(500, 5_000), True)


def copied(state: MarketState) -> MarketState:
    """Return a state that another one's steps do not change."""
    other = copy.copy(state)
    for name, value in vars(state).items():
        if isinstance(value, dict):
            setattr(other, name, defaultdict(list, value) if name == "records" else dict(value))
    return other


def turned(state: MarketState, names: list[str]) -> float:
    """Close the open epoch, and open the next one."""
    assert state.open is not None
    at = state.open.opened + QUARTER
    taken(state, close_epoch(state, at))
    taken(state, vest(state, at))
    taken(state, release(state, at))
    taken(state, open_epoch(state, at, names))
    return 1.0


def seconds_in_memory(nodes: int = NODES) -> float:
    """Return the CPU seconds of closing an epoch and opening the next one, the median of `ROUNDS`."""
    state = at_work(nodes)
    names = list(state.asks)
    copies = [copied(state) for _ in range(ROUNDS)]
    return statistics.median(bench.timed(partial(turned, one, names))().cpu for one in copies)


def claims(nodes: int = NODES) -> list[bench.Claim]:
    """Print the times; return the claim."""
    state = at_work(nodes)
    names = list(state.asks)
    keys = [
        (offer.counted_cost, lot(offer, BEACON))
        for offer in offers(names, state.asks, state.measurements, {}, state.incumbents)
    ]
    random.Random(4).shuffle(keys)

    def turn() -> bench.Measured:
        copy_ = copied(state)
        return bench.timed(lambda: turned(copy_, names))()

    def sort() -> float:
        return len(sorted(keys)) / nodes

    found = bench.take_turns({"close and open": turn, "bare sort": bench.timed(sort)}, ROUNDS)
    bench.table(
        ("nodes", *(f"{name}, CPU s" for name in found)),
        [(nodes, *(statistics.median(one.cpu for one in each) for each in found.values()))],
    )
    ratio = bench.ratio(found["bare sort"], found["close and open"])
    return [bench.Claim("market epoch", ratio, "a bare sort of the same costs", BAR, at_most=True)]
