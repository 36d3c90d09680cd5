"""Attacks on connections, frames and methods: nothing that is sent is work.

Each is held if honest nodes work on meanwhile (benchmarks/attacks/outcome.py), if the coordinator's memory grows by
no more than `MEMORY`, and if what is sent is refused.
"""

import contextlib
import socket
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.engine_place import EnginePlace
from benchmarks.attacks.flood_keys import Connection
from echo2.p2p.discovery.messages import ReachableRequest
from echo2.p2p.errors import P2PError
from echo2.p2p.multiaddr import address_of
from echo2.p2p.wire_types import encode
from echo2.protocol.methods import METHODS

SILENT: Final = 300
"""Silent connections per second."""
MOST_OPEN: Final = 2000
ASKS: Final = 40
"""Tiny requests under way at a time, of each of `PEERS` peers."""
PEERS: Final = 10
BOMB: Final = b"\xdd\x00\x0f\xff\xff" + b"\x80" * 0xFFFFF
"""A MessagePack array of 1,048,575 empty maps: 1 MB that take 70 MB in a decode without types."""


@dataclass
class SilentConnections:
    """One address that opens connections and sends nothing, over libp2p, or to the page."""

    page: bool = False
    opened: int = 0

    async def run(self, place: EnginePlace) -> None:
        """Open connections without end, and hold as many as stay open."""
        port = place.order.page if self.page else (address_of(place.order.addresses[0]).port or 0)
        sockets = list[socket.socket]()
        try:
            while True:
                one = socket.socket()
                one.setblocking(False)
                one.bind(("127.9.9.9", 0))
                one.connect_ex(("127.0.0.1", port))
                sockets.append(one)
                self.opened += 1
                if len(sockets) > MOST_OPEN:
                    sockets.pop(0).close()
                await anyio.sleep(1 / SILENT)
        finally:
            for one in sockets:
                one.close()

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State how many were opened."""
        return AttackFinding(tried=self.opened)


@dataclass
class TinyRequests:
    """Peers that send requests that cost little, each again as soon as it is answered or refused."""

    sent: int = 0

    async def run(self, place: EnginePlace) -> None:
        """Send without end."""
        ask = encode(ReachableRequest(ports=[4310]))
        for number in range(PEERS):
            connection = await place.connect(f"tiny {number}")
            for _ in range(ASKS):
                place.tasks.start_soon(self._ask, connection, ask)
        await anyio.sleep_forever()

    async def _ask(self, connection: Connection, ask: bytes) -> None:
        while True:
            self.sent += 1
            with contextlib.suppress(P2PError):
                await connection.request(connection.to, "reachable", ask, timeout=30.0)
            await anyio.sleep(0.05)

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State how many were sent."""
        return AttackFinding(tried=self.sent)


@dataclass
class Bombs:
    """A peer that sends a bomb to each method: bytes that grow when they are decoded without a type."""

    sent: int = 0
    taken: int = 0

    async def run(self, place: EnginePlace) -> None:
        """Send one bomb to each method, cut to the method's limit."""
        for method in METHODS:
            connection = await place.connect("bombs")
            data = BOMB[: max(16, method.limit - 64)]
            self.sent += 1
            with contextlib.suppress(P2PError, msgspec.MsgspecError):
                answer = await connection.request(connection.to, method.name, data, timeout=10.0)
                self.taken += _taken(answer)

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State how many methods took one."""
        return AttackFinding(tried=self.sent, prevented=self.taken == 0, note=f"{self.taken} taken for a request")


def _taken(answer: bytes) -> bool:
    """Tell whether an answer is that of a request which was understood and served."""
    fields = msgspec.msgpack.decode(answer)
    return isinstance(fields, dict) and bool(fields.get("body"))
