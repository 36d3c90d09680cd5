"""`python -m benchmarks.flood.wire`: honest nodes or strangers in a process of their own, over real connections.

The first line on stdin is an `Order`; the process works until stdin ends, and answers each line before that with what
`Attack.said` tells. Strangers are those of benchmarks/flood/catalogue.py; a party is a subnet 127.x.y.0/24 of this
machine (benchmarks/load/host.py).
"""

import json
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.flood.catalogue import CASES
from benchmarks.flood.keys import Line
from benchmarks.flood.place import Place
from benchmarks.load.light import Terms
from p2p.errors import P2PError
from p2p.libp2p import LibP2PTransport
from p2p.peer import Peer

_LOOK: Final = 0.25
"""Seconds from one look at the newest version to the next."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes`: seconds that each honest node takes for a group; `attack`: a sentence of the catalogue, or none.
    `database`: run.sqlite, which is only read."""

    terms: Terms
    addresses: list[str]
    coordinator: str
    database: str
    nodes: list[float] = []
    attack: str = ""


class Wire(Place):
    """The place as a process of its own sees it."""

    tasks: trio.Nursery

    def __init__(self, order: Order, tasks: trio.Nursery) -> None:
        super().__init__(seed=time.time_ns(), first=time.time_ns())
        self._order, self._terms, self.tasks = order, order.terms, tasks
        self._parties: dict[str, int] = {}

    def now(self) -> int:
        """See `Place`."""
        return time.time_ns() // 1_000_000

    def terms(self) -> Terms:
        """See `Place`."""
        return self._terms

    async def follow(self) -> None:
        """Hold the newest version, until cancelled."""
        while True:
            rows = self.rows("SELECT version, root FROM versions ORDER BY version DESC LIMIT 1")
            self._terms = msgspec.structs.replace(self._terms, version=rows[0][0], root=rows[0][1])
            await trio.sleep(_LOOK)

    async def line(self, party: str = "") -> Line:
        """See `Place`."""
        number = self._parties.setdefault(party or f"own {len(self._parties)}", len(self._parties))
        subnet = f"127.{(40 if party else 120) + number // 200}.{number % 200}"
        peer = Peer(LibP2PTransport(Ed25519PrivateKey.generate(), [], patience=20.0), seed=number)
        self.tasks.start_soon(peer.run)
        await peer.ready()
        connect = trio.open_tcp_stream
        trio.open_tcp_stream = partial(connect, local_address=f"{subnet}.1")
        try:
            while True:
                try:
                    return Line(peer, await peer.dial(self._order.addresses))
                except P2PError:
                    await trio.sleep(0.5)
        finally:
            trio.open_tcp_stream = connect

    def rows(self, query: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """See `Place`."""
        with closing(sqlite3.connect(f"file:{self._order.database}?mode=ro", uri=True, timeout=10.0)) as reader:
            return reader.execute(query, parameters).fetchall()


async def _serve() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    async with trio.open_nursery() as nursery:
        wire = Wire(order, nursery)
        nursery.start_soon(wire.follow)
        attack = CASES[order.attack].attack if order.attack else None
        for seconds in order.nodes:
            nursery.start_soon(wire.volunteer, seconds)
            await trio.sleep(0.1)
        if attack is not None:
            nursery.start_soon(attack.run, wire)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            said = {} if attack is None else attack.said(wire)
            print(json.dumps(said), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_serve)
