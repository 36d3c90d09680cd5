"""Honest nodes or attackers in a process of their own, over real connections: `python -m benchmarks.flood.wire`.

The first line on stdin is an `Order`. The process works until stdin ends, and answers each later line with a summary of
the attackers (`Attack.said`) or of the honest nodes (`Wire.asked`). A party is a subnet 127.x.y.0/24, which the
coordinator treats as a public one (benchmarks/load/host.py). All connect over libp2p; if the order has a pin, over
HTTPS.
"""

import json
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec
import trio
from anyio.abc import TaskGroup
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.flood.catalogue import CASES
from benchmarks.flood.keys import Connection
from benchmarks.flood.place import Place
from benchmarks.flood.visitors import SOURCE, Visitors, from_sources
from benchmarks.load.light import Terms
from p2p.errors import P2PError
from p2p.https.client import HttpsClient
from p2p.libp2p.transport import LibP2PTransport
from p2p.peer.peer import Peer

_LOOK: Final = 0.25
"""Seconds between two queries for the newest version."""
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


class Wire(Place):
    """The environment of nodes in a process of their own: the coordinator is another process."""

    tasks: TaskGroup

    def __init__(self, order: Order, tasks: TaskGroup) -> None:
        super().__init__(seed=time.time_ns(), first=time.time_ns())
        self._order, self._terms, self.tasks = order, order.terms, tasks
        self._parties: dict[str, int] = {}
        self._lines: list[Connection] = []

    def now(self) -> int:
        """See `Place`."""
        return time.time_ns() // 1_000_000

    def terms(self) -> Terms:
        """See `Place`."""
        return self._terms

    def asked(self) -> dict[str, float]:
        """Return the number of requests so far, and of those that were not answered."""
        return {
            "requests": sum(connection.asked for connection in self._lines),
            "unanswered": sum(connection.unanswered for connection in self._lines),
        }

    async def follow(self) -> None:
        """Follow the newest version until cancelled."""
        while True:
            rows = self.rows("SELECT version, root FROM versions ORDER BY version DESC LIMIT 1")
            self._terms = msgspec.structs.replace(self._terms, version=rows[0][0], root=rows[0][1])
            await anyio.sleep(_LOOK)

    async def connect(self, party: str = "") -> Connection:
        """See `Place`."""
        number = self._parties.setdefault(party or f"own {len(self._parties)}", len(self._parties))
        kind = 20 * (self._order.pin is not None)
        source = f"127.{(40 if party else 120) + kind + number // 200}.{number % 200}.1"
        connection = await (self._over_libp2p(source) if self._order.pin is None else self._over_https(source))
        self._lines.append(connection)
        return connection

    async def _over_libp2p(self, source: str) -> Connection:
        peer = Peer(LibP2PTransport(Ed25519PrivateKey.generate(), [], patience=20.0), seed=0)
        self.tasks.start_soon(peer.run)
        await peer.ready()
        connect = trio.open_tcp_stream
        trio.open_tcp_stream = partial(connect, local_address=source)
        try:
            return await self._dialled(peer)
        finally:
            trio.open_tcp_stream = connect

    async def _over_https(self, source: str) -> Connection:
        assert self._order.pin is not None
        network = HttpsClient(source, self._order.pin)
        SOURCE.set(source)
        self.tasks.start_soon(network.run)
        await network.ready()
        return await self._dialled(network)

    async def _dialled(self, network: Peer | HttpsClient) -> Connection:
        while True:
            try:
                return Connection(network, await network.dial(self._order.addresses))
            except P2PError:
                await anyio.sleep(0.5)

    def rows(self, query: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """See `Place`."""
        with closing(sqlite3.connect(f"file:{self._order.database}?mode=ro", uri=True, timeout=10.0)) as reader:
            return reader.execute(query, parameters).fetchall()


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
            print(json.dumps(wire.asked() if attack is None else attack.said(wire)), flush=True)
        tasks.cancel_scope.cancel()


def _attack(order: Order) -> Any:
    if order.attack != VISITORS:
        return CASES[order.attack].attack if order.attack else None
    assert order.pin is not None
    return Visitors(order.addresses, order.pin)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    if order.pin is not None:
        from_sources()
    anyio.run(_serve, order, backend="trio" if order.pin is None else "asyncio")


if __name__ == "__main__":
    main()
