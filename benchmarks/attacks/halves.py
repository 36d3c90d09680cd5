"""Attackers that stop halfway: streams, requests and bodies of which the rest never comes.

An attacker has `connections` connections from `parties` subnets, and begins `each` streams or bodies on each of them.
It sends the first half of one at once, then a byte every `DRIP` seconds, so that no watchdog which waits for one byte
sees silence. A half that the other side ends is begun again after `AGAIN` seconds. None of it needs a key.
"""

import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.wire_place import WirePlace
from echo2.p2p.https import routes
from echo2.p2p.multiaddr import Address, address_of
from echo2.p2p.peer import rpc

DRIP: Final = 5.0
AGAIN: Final = 0.5
ANNOUNCED: Final = 60_000
"""Bytes that a request announces: fewer than the limit of every method of nodes."""
UNSERVED: Final = "/echo2/unserved/1"
"""A protocol that nobody serves: its streams stand idle."""


def proposal(protocol: str) -> bytes:
    """Return the bytes that open a stream of a protocol by multistream-select."""
    name = protocol.encode() + b"\n"
    return b"\x13/multistream/1.0.0\n" + bytes([len(name)]) + name


def half_request(method: str) -> bytes:
    """Return the first bytes of a request: the frame of its method's name, and the head of a frame that never comes."""
    return len(method).to_bytes(4, "big") + method.encode() + ANNOUNCED.to_bytes(4, "big") + b"\0"


@dataclass
class Halves(ABC):
    """An attacker that stops halfway. `source`: the address from which all of it comes; "": of each party its own.
    `begun`: what it began so far. `standing`: what of it stands half sent now."""

    connections: int = 8
    parties: int = 8
    each: int = 32
    source: str = ""
    begun: int = 0
    standing: int = 0

    async def run(self, place: WirePlace) -> None:
        """Begin without end."""
        for number in range(self.connections):
            await self.connect(place, f"half {number % self.parties}")
        await anyio.sleep_forever()

    @abstractmethod
    async def connect(self, place: WirePlace, party: str) -> None:
        """Begin `each` streams or bodies from one party."""

    async def keep(self, *parts: Any) -> None:
        """Keep one stream or body half sent."""
        while True:
            self.begun += 1
            with suppress(Exception):  # upstream raises a dozen types for a stream that was reset
                await self.send_half(*parts)
            await anyio.sleep(AGAIN)

    @abstractmethod
    async def send_half(self, *parts: Any) -> None:
        """Send one half, and drip until the other side ends it."""

    @contextmanager
    def stand(self) -> Iterator[None]:
        """Count one half that stands during the block."""
        self.standing += 1
        try:
            yield
        finally:
            self.standing -= 1

    def said(self, place: WirePlace) -> dict[str, float]:
        """Return what was begun, what of it stands, and what would stand if the other side ended nothing."""
        return {"begun": self.begun, "standing": self.standing, "wanted": self.connections * self.each}

    def finding(self, place: WirePlace) -> AttackFinding:
        """State the same."""
        return AttackFinding(tried=self.begun, note=f"{self.standing} stand at the end")


@dataclass
class HalfStreams(Halves):
    """Streams over libp2p: of a protocol with the first bytes of a request, or idle (`half` empty)."""

    protocol: str = rpc.PROTOCOL
    half: bytes = b""
    streams: set[Any] = field(default_factory=set)
    """Streams that were opened, those that the other side has reset among them."""

    def finding(self, place: WirePlace) -> AttackFinding:
        """See `Halves`. A stream that was reset since its last byte does not stand."""
        self.standing = sum(not stream.is_closed for stream in self.streams)
        return super().finding(place)

    async def connect(self, place: WirePlace, party: str) -> None:
        """See `Halves`."""
        connection = await (place.connect_from(self.source) if self.source else place.connect(party))
        transport: Any = getattr(connection.network, "_transport")  # noqa: B009 - raw streams are no part of `Peer`
        for coordinator in transport.host.get_connected_peers():  # none: the connection was refused or given up
            for _ in range(self.each):
                place.tasks.start_soon(self.keep, transport.host, coordinator)

    async def send_half(self, host: Any, peer: Any) -> None:
        """See `Halves`."""
        stream = await host.get_network().new_stream(peer)
        await stream.write(proposal(self.protocol) + self.half)
        self.streams.add(stream.muxed_stream)
        with self.stand():
            while not stream.muxed_stream.is_closed:
                await anyio.sleep(DRIP)
                if self.half:
                    await stream.write(b"\0")


@dataclass
class HalfBodies(Halves):
    """Bodies of requests over HTTPS, each over a connection of its own."""

    method: str = "submit"

    async def connect(self, place: WirePlace, party: str) -> None:
        """See `Halves`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for _ in range(self.each):
            place.tasks.start_soon(self.keep, place.source(party), address_of(place.https[0]), context)

    async def send_half(self, source: str, address: Address, context: ssl.SSLContext) -> None:
        """See `Halves`."""
        async with await anyio.connect_tcp(
            address.host, address.port or 0, local_host=source, ssl_context=context, tls_standard_compatible=False
        ) as stream:
            head = f"POST {routes.RPC}{self.method} HTTP/1.1\r\nHost: echo2\r\nContent-Length: {ANNOUNCED}\r\n\r\n"
            await stream.send(head.encode())
            with self.stand():
                while True:
                    await stream.send(b"\0")
                    with anyio.move_on_after(DRIP):
                        await stream.receive()
                        return
