"""Honest nodes or attackers in a process of their own, over real connections: `python -m benchmarks.flood.wire`.

The first line on stdin is an `Order`. The process works until stdin ends, and answers each later line with a summary of
the attackers (`Attack.said`) or of the honest nodes (`Wire.asked`). A party is a subnet 127.x.y.0/24, which the
coordinator treats as a public one (benchmarks/attacks/foreign_loopback.py). All connect over libp2p; if the order has
a pin, over HTTPS.
"""

import json
import os
import sys
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from benchmarks.attacks.flood_keys import Connection
from benchmarks.attacks.light_node import Terms
from benchmarks.attacks.wire_place import WirePlace
from benchmarks.flood.catalogue import CASES
from benchmarks.flood.engine import honest
from benchmarks.flood.visitors import SOURCE, SourcedClient, Visitors
from echo2.protocol.leases import Lease, Submission

VISITORS: Final = "strangers ask over HTTPS without end"
"""Name of the attack of benchmarks/flood/visitors.py, which the catalogue does not contain."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The process's task. `addresses`: of the coordinator, for libp2p; with `pin`, for HTTPS. `database`: run.sqlite,
    which is only read. `nodes`: seconds per group of each honest node. `attack`: a key of the catalogue, `VISITORS`, or
    empty."""

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
    if order.attack:
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
    """Return the number of requests of honest nodes, and of those that were not answered."""
    counts = wire.asked()
    return {what: counts[what] for what in ("requests", "unanswered")}


def _attack(order: Order) -> Any:
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
