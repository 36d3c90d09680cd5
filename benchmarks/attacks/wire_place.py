"""The place of nodes in a process of their own: the coordinator is another process, and all connect over libp2p.

1. Every connection goes to an address of this machine's loopback, from a loopback address. A party is a subnet
   127.x.y.0/24, which the coordinator under test treats as a public one (benchmarks/attacks/foreign_loopback.py).
2. The newest version is read from run.sqlite, which is only read: how versions travel is not the point here.
"""

import sqlite3
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.flood_keys import Asker, Connection
from benchmarks.attacks.light_node import Terms
from benchmarks.attacks.place import AttackPlace
from benchmarks.attacks.sourced_sockets import dialled_from
from echo2.p2p.errors import P2PError
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.peer.peer import Peer
from echo2.protocol.leases import Lease, Submission

_LOOK: Final = 0.25
"""Seconds between two queries for the newest version."""


class WirePlace(AttackPlace):
    """The environment of nodes whose coordinator is another process. `lines`: all connections made. `https`: its
    addresses over HTTPS."""

    tasks: TaskGroup

    def __init__(self, terms: Terms, addresses: list[str], database: str, tasks: TaskGroup, base: int = 0) -> None:
        """`addresses`: of the coordinator. `database`: the path of its run.sqlite. `base`: number of the first party:
        another attack's parties are others, whom no earlier suspension concerns."""
        super().__init__(seed=time.time_ns(), first=time.time_ns())
        self._terms, self._addresses, self._database, self.tasks = terms, addresses, database, tasks
        self._parties: dict[str, int] = {}
        self._base = base
        self.https: list[str] = []
        self.lines: list[Connection] = []

    def now(self) -> int:
        """See `AttackPlace`."""
        return time.time_ns() // 1_000_000

    def terms(self) -> Terms:
        """See `AttackPlace`."""
        return self._terms

    @abstractmethod
    async def group(self, lease: Lease) -> Submission:
        """See `AttackPlace`."""

    def asked(self) -> dict[str, float]:
        """Return the number of requests so far, of those that were not answered, and the bytes of both directions."""
        return {
            "requests": sum(connection.asked for connection in self.lines),
            "unanswered": sum(connection.unanswered for connection in self.lines),
            "sent": sum(connection.sent for connection in self.lines),
            "received": sum(connection.received for connection in self.lines),
        }

    async def follow(self) -> None:
        """Follow the newest version until cancelled."""
        while True:
            self.look()
            await anyio.sleep(_LOOK)

    def look(self) -> None:
        """Learn the newest version, unless this process cannot work under it."""
        rows = self.rows("SELECT era, version, root FROM versions ORDER BY era DESC, version DESC LIMIT 1")
        era, version, root = rows[0]
        if self.holds(era, version, root):
            self._terms = msgspec.structs.replace(self._terms, era=era, version=version, root=root)

    def holds(self, era: int, version: int, root: bytes) -> bool:
        """Tell whether this process can work under a version."""
        return True

    async def connect(self, party: str = "") -> Connection:
        """See `AttackPlace`."""
        connection = await self.connect_from(self.source(party))
        self.lines.append(connection)
        return connection

    def source(self, party: str = "", kind: int = 0) -> str:
        """Return the loopback address of a party; none: one of its own. `kind`: parties of another kind have others."""
        number = self._base + self._parties.setdefault(party or f"own {len(self._parties)}", len(self._parties))
        return f"127.{(40 if party else 120) + kind + number // 200}.{number % 200}.1"

    async def connect_from(self, source: str) -> Connection:
        """Connect a new peer to the coordinator from a loopback address."""
        peer = Peer(LibP2PTransport(Ed25519PrivateKey.generate(), [], patience=20.0), seed=0)
        self.tasks.start_soon(peer.run)
        await peer.ready()
        with dialled_from(source):
            return await self.dialled(peer)

    async def dialled(self, network: Asker) -> Connection:
        """Dial until the coordinator answers."""
        while True:
            try:
                return Connection(network, await network.dial(self._addresses))
            except P2PError:
                await anyio.sleep(0.5)

    def rows(self, query: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """See `AttackPlace`."""
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=10.0)) as reader:
            return reader.execute(query, parameters).fetchall()
