"""Honest nodes or attackers in a process of their own, over real connections: `python -m benchmarks.flood.wire`.

The first line on stdin is an `Order`. The process works until stdin ends, and answers each later line with a summary of
the attackers (`Attack.said`) or of the honest nodes (`Wire.asked`). A party is a subnet 127.x.y.0/24, which the
coordinator treats as a public one (benchmarks/attacks/foreign_loopback.py). All connect over libp2p; if the order has
a pin, over HTTPS.
"""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from benchmarks.attacks.flood_keys import Connection
from benchmarks.attacks.halves import UNSERVED, HalfBodies, HalfStreams, Halves, half_request
from benchmarks.attacks.light_node import Terms
from benchmarks.attacks.wire_place import WirePlace
from benchmarks.flood.catalogue import CASES
from benchmarks.flood.engine import honest
from benchmarks.flood.visitors import SOURCE, SourcedClient, Visitors
from echo2.protocol.leases import Lease, Submission
from echo2.protocol.requests import Refusal

VISITORS: Final = "strangers ask over HTTPS without end"
"""Name of the attack of benchmarks/flood/visitors.py, which the catalogue does not contain."""
REQUESTS: Final = "8 connections begin 256 submissions and do not finish them"
GREETINGS: Final = "4 connections begin 128 hellos and do not finish them"
IDLE_STREAMS: Final = "68 connections of 3 subnets open 256 idle streams each"
BODIES: Final = "8 addresses begin 256 submissions over HTTPS and do not finish them"
NEWCOMERS: Final = "newcomers"
"""Honest keys that come one after the other: for each a hello, a lease, and a group."""
HALVES: Final[dict[str, Halves]] = {
    REQUESTS: HalfStreams(8, 8, 32, half=half_request("submit")),
    GREETINGS: HalfStreams(4, 4, 32, half=half_request("hello")),
    IDLE_STREAMS: HalfStreams(68, 3, 256, protocol=UNSERVED),
    BODIES: HalfBodies(8, 8, 32),
}
"""The attacks of benchmarks/attacks/halves.py, by name."""
OVER_HTTPS: Final = (VISITORS, BODIES)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The process's task. `addresses`: of the coordinator, for libp2p; with `pin`, for HTTPS. `database`: run.sqlite,
    which is only read. `nodes`: seconds per group of each honest node. `attack`: a key of the catalogue or of `HALVES`,
    `VISITORS`, `NEWCOMERS`, or empty."""

    terms: Terms
    addresses: list[str]
    pin: bytes | None = None
    coordinator: str
    database: str
    nodes: list[float] = []
    attack: str = ""


class Wire(WirePlace):
    """The environment of nodes in a process of their own, with stand-in models."""

    def __init__(self, order: Order, tasks: TaskGroup) -> None:
        super().__init__(order.terms, order.addresses, order.database, tasks)
        self._pin = order.pin
        self.https = order.addresses if order.pin is not None else []

    async def group(self, lease: Lease) -> Submission:
        """See `AttackPlace`."""
        return honest(lease)

    async def connect_from(self, source: str) -> Connection:
        """Connect over libp2p, or with a pin over HTTPS."""
        if self._pin is None:
            return await super().connect_from(source)
        network = SourcedClient(source, self._pin)
        SOURCE.set(source)
        self.tasks.start_soon(network.run)
        await network.ready()
        return await self.dialled(network)

    def source(self, party: str = "", kind: int = 0) -> str:
        """Return an address of its own range for HTTPS."""
        return super().source(party, 20 * (self._pin is not None))


async def _serve(order: Order) -> None:
    if order.attack and order.attack != NEWCOMERS:
        os.nice(19)  # attackers have machines of their own: their computing must not slow ours
    async with anyio.create_task_group() as tasks:
        wire = Wire(order, tasks)
        tasks.start_soon(wire.follow)
        attack = _attack(order)
        for seconds in order.nodes:
            tasks.start_soon(wire.volunteer, seconds)
            await anyio.sleep(0.1)
        if attack is not None:
            tasks.start_soon(attack.run, wire)
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(_asked(wire) if attack is None else attack.said(wire)), flush=True)
        tasks.cancel_scope.cancel()


def _asked(wire: Wire) -> dict[str, float]:
    """Return the number of requests of honest nodes, of those that were not answered, and of groups taken."""
    counts = wire.asked()
    groups = sum(key.taken for key in wire.honest)
    return {"groups": groups, **{what: counts[what] for what in ("requests", "unanswered")}}


@dataclass
class Newcomers:
    """Newcomers, one every `EVERY` seconds. `came`: so far, but for those of the last `PATIENCE` seconds. `served`:
    those of them whose hello, lease and group were answered within `PATIENCE` seconds."""

    came: int = 0
    served: int = 0
    EVERY: ClassVar[float] = 3.0
    PATIENCE: ClassVar[float] = 10.0

    async def run(self, world: Wire) -> None:
        """Let newcomers come until cancelled."""
        while True:
            world.tasks.start_soon(self._come, world)
            await anyio.sleep(self.EVERY)

    async def _come(self, world: Wire) -> None:
        began = anyio.current_time()
        with anyio.move_on_after(self.PATIENCE) as patience:
            key = world.key(await world.connect())
            await key.hello()
            lease = await key.lease(world.terms())
            if not isinstance(lease, Refusal):
                await key.submit(honest(lease))
        await anyio.sleep(max(0.0, began + self.PATIENCE - anyio.current_time()))
        self.came += 1
        self.served += not patience.cancelled_caught

    def said(self, world: Wire) -> dict[str, float]:
        return {"came": self.came, "served": self.served}


def _attack(order: Order) -> Any:
    if order.attack in HALVES:
        return HALVES[order.attack]
    if order.attack == NEWCOMERS:
        return Newcomers()
    if order.attack != VISITORS:
        return CASES[order.attack].attack if order.attack else None
    assert order.pin is not None
    return Visitors(order.addresses, order.pin)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    if order.pin is not None:
        os.environ["no_proxy"] = "*"
    anyio.run(_serve, order, backend="trio" if order.pin is None else "asyncio")


if __name__ == "__main__":
    main()
