"""Attackers over HTTPS: one key each, many connections, many requests over each of them.

Rules
1. An attacker has one key and one address. Half of its connections are kept alive, the others are made anew for each
   request. Each connection sends its next request as soon as the last was answered or refused, and ignores
   `Retry-After`. The requests alternate: for a lease, for the verdicts of 256 leases that do not exist, for 64
   documents that do not exist.
2. A signed request costs the attacker as much as an honest node. Its key says hello, and has no accepted work.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import aiohttp
import anyio

from benchmarks.attacks.flood_keys import Key
from benchmarks.attacks.place import AttackPlace
from echo2.p2p.https import routes
from echo2.p2p.https.certificate import KeyPin
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.multiaddr import address_of
from echo2.p2p.wire_types import encode
from echo2.protocol.requests import DocumentsRequest

SOURCE: ContextVar[str] = ContextVar("source")
"""The local address of the connections of a task and of its child tasks."""


def connector_of(pin: bytes, **options: Any) -> aiohttp.TCPConnector:
    """Make an object that opens connections from the local address `SOURCE`."""
    return aiohttp.TCPConnector(ssl=KeyPin(pin), limit=0, local_addr=(SOURCE.get(), 0), **options)


class SourcedClient(HttpsClient):
    """A node's client whose connections come from the local address `SOURCE`."""

    def connector(self) -> aiohttp.TCPConnector:
        """See `HttpsClient`."""
        return connector_of(self._pin)


@dataclass
class Visitors:
    """`strangers` attackers, each with `connections` connections. `pin`: hash of the coordinator's HTTPS key. `counts`:
    answers by HTTP status; at 0, requests without an answer."""

    addresses: list[str]
    pin: bytes
    strangers: int = 4
    connections: int = 32
    counts: Counter[int] = field(default_factory=Counter)

    async def run(self, world: AttackPlace) -> None:
        """Send requests until cancelled."""
        for number in range(self.strangers):
            key = world.key(await world.connect(f"stranger {number}"))
            world.tasks.start_soon(self._visit, world, key)

    def said(self, world: AttackPlace) -> dict[str, float]:
        """Return the number of requests in all, answered with 200, refused with 429, and without an answer."""
        return {
            "requests": self.counts.total(),
            "answered": self.counts[200],
            "429": self.counts[429],
            "no answer": self.counts[0],
        }

    async def _visit(self, world: AttackPlace, key: Key) -> None:
        await key.hello()
        asks, half = self._asks(world, key), self.connections // 2
        timeout = aiohttp.ClientTimeout(total=30.0)
        async with (
            aiohttp.ClientSession(connector=connector_of(self.pin), timeout=timeout) as kept,
            aiohttp.ClientSession(connector=connector_of(self.pin, force_close=True), timeout=timeout) as anew,
            anyio.create_task_group() as tasks,
        ):
            for session in (kept, anew):
                for _ in range(half):
                    tasks.start_soon(self._ask, session, asks)

    async def _ask(self, session: aiohttp.ClientSession, asks: Iterator[tuple[str, bytes]]) -> None:
        while True:
            url, data = next(asks)
            try:
                async with session.post(url, data=data) as answer:
                    await answer.read()
                    self.counts[answer.status] += 1
            except (TimeoutError, aiohttp.ClientError, OSError):
                self.counts[0] += 1
                await anyio.sleep(0.1)

    def _asks(self, world: AttackPlace, key: Key) -> Iterator[tuple[str, bytes]]:
        origin = next(url for one in self.addresses if (url := address_of(one).https_url))
        nothing = encode(DocumentsRequest(hashes=[os.urandom(32) for _ in range(64)]))
        for method in cycle(("lease", "verdicts", "documents")):
            data = nothing if method == "documents" else key.sealed(method, world.terms())
            yield f"{origin}{routes.RPC}{method}", data
