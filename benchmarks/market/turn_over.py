"""The longest time for which the turn-over of an epoch keeps the event loop, over a ledger on disk.

A market of measured nodes, of which about three in four are active, each with ten groups and the pay of `TRANCHES`
epochs that vests: all that a turn-over does, from the measurement of nodes to the stored snapshot. CPU seconds of one
slice (coordinator/epochs/turn_over.py), garbage collection included; each begins in another iteration of the loop.
"""

import gc
import random
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.harness import bench
from benchmarks.market import epoch_close
from echo2.coordinator.market.epochs import announce, draw, open_epoch
from echo2.coordinator.market.holdback import earned_tranche, release_tranches, vest_tranches
from echo2.coordinator.market.throughput import NEW_NODE, measure_node
from echo2.ledger.ledger_entries import ESCROW, FUND, Posting, accrued_account, unvested_account
from echo2.p2p.identity import peer_id
from tests.support.group_world import T0
from tests.support.market_world import TERMS, MarketWorld, key_of

SIZES: Final = (750, 10_000)
TRANCHES: Final = 95
QUARTER: Final = epoch_close.QUARTER
ANCHOR: Final = "an epoch of as many nodes closed and opened in memory"
BAR: Final = 0.55
"""The longest slice with the largest market, in units of `ANCHOR`."""


class _Begun(msgspec.Struct, frozen=True):
    """Facts of the entry that brings the balances of the time before."""


class TurnedOver(NamedTuple):
    """CPU seconds of a turn-over. `paid`: nodes."""

    paid: int
    total: float
    longest: float
    slices: int


def market_of(folder: Path, nodes: int) -> MarketWorld:
    """Return a market whose first epoch has run to its end, and whose second one is announced and drawn."""
    chance, names = random.Random(3), [peer_id(key_of(number)) for number in range(nodes)]
    world = MarketWorld(folder, TERMS._replace(epoch=QUARTER, asks=60_000, reserve=10**9, budget=10**17))
    state, service = world.market.service.state, world.market.service
    for name in names:
        first = [epoch_close.record(chance, T0 - (40 - number) * 20_000) for number in range(40)]
        state.measurements[name] = measure_node(NEW_NODE, first).throughput
        state.asks[name] = chance.randint(10**7, 10**9)
    rates = sum(one.lower for one in state.measurements.values())

    def announced(epoch: int, at: int) -> None:
        terms = msgspec.structs.replace(epoch_close.terms(epoch, at, rates), need=3 * rates // 4)
        epoch_close.taken(state, announce(state, at, terms))
        epoch_close.taken(state, draw(state, at + 2, epoch_close.BEACON))

    announced(1, T0)
    epoch_close.taken(state, open_epoch(state, T0 + 2, names))
    assert state.open is not None
    changes = list[tuple[str, int]]()
    for name in [one.node.decode() for one in state.open.plan.market.nodes]:
        pay = [
            earned_tranche(T0 - place * QUARTER + 3, chance.randint(2_000, 12_000), chance.randint(10**8, 10**10))
            for place in range(TRANCHES, 0, -1)
        ]
        state.tranches[name] = release_tranches(vest_tranches(pay, T0 - 1)[0], T0 - 1, True)[0]
        state.records[name] = [epoch_close.record(chance, T0 + number * 20_000) for number in range(10)]
        changes.append((accrued_account(name), sum(one.accrued for one in state.tranches[name])))
        changes.append((unvested_account(name), sum(one.unvested for one in state.tranches[name])))
    changes.append((ESCROW, state.open.plan.budget))
    changes.append((FUND, -sum(amount for _, amount in changes)))
    world.group_service.ledger.append(T0, "balances.brought", "begun", _Begun(), [Posting(*one) for one in changes])
    service.read()
    state.settled = {"vested", "released"}  # in the epoch that runs
    announced(2, T0 + QUARTER - 120_000)
    world.now = T0 + QUARTER + 3
    for name in names:
        world.market.presence.note(name, name, world.now - 30_000, service.kind(name), for_work=True)
    return world


def turned_over(nodes: int) -> TurnedOver:
    """Return the cost of one turn-over."""
    with tempfile.TemporaryDirectory() as name:
        world = market_of(Path(name), nodes)
        gc.collect()  # as in a run, whose state is older than an epoch
        paid, seconds, left = len(world.market.service.state.tranches), list[float](), True
        while left:
            begun = time.thread_time()
            left = world.market.tick(world.now)
            seconds.append(time.thread_time() - begun)
        assert {one.kind for one in world.entries()} >= {"epoch.closed", "epoch.opened", "vested", "released"}
        return TurnedOver(paid, sum(seconds), max(seconds), len(seconds))


def claims() -> list[bench.Claim]:
    """Print the costs; return the claim."""
    found, anchor = [turned_over(nodes) for nodes in SIZES], epoch_close.seconds_in_memory(SIZES[-1])
    columns = ("nodes", "paid", "CPU s", "longest slice, CPU s", "slices")
    bench.table(columns, [(nodes, *one) for nodes, one in zip(SIZES, found, strict=True)])
    print(f"an epoch of {SIZES[-1]:,} nodes closed and the next one opened in memory: {anchor:.3f} s of CPU\n")
    return [bench.Claim("market turn-over", found[-1].longest / anchor, ANCHOR, BAR, at_most=True)]
