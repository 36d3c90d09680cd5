"""The seam between this project and any network stack: streams of frames, and a small gossip.

Two implementations are shipped: `p2p.memory.transport` (a whole network in one process, with loss, delay and
partition) and `p2p.libp2p.transport`. A transport runs natively in the event loop that owns it (asyncio for the
in-memory one, trio for libp2p), so code written on anyio runs, and is tested, on either.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from p2p.limits.origin import Origin

StreamHandler = Callable[["Stream"], Awaitable[None]]
GossipHandler = Callable[[str, bytes], Awaitable[bool]]
"""(id of the connected peer that passed it on, data) -> whether the message is valid and may be forwarded."""

GOSSIP_LIMIT = 16 * 1024
"""Bytes of the largest message that may be gossiped."""


class Stream(Protocol):
    """An ordered, bidirectional flow of frames with one peer.

    A frame is `bytes`. Sending never blocks for longer than the watchdog allows: a peer that makes no
    progress is reset, and every waiting call raises `Unreachable`.
    """

    @property
    def peer(self) -> str:
        """The authenticated peer id of the other side."""

    async def send(self, *pieces: bytes | memoryview) -> None:
        """Send one frame, given in pieces that must not change later. Raises `Unreachable`."""

    async def receive(self, limit: int) -> bytes | None:
        """One frame, or None when the other side finished. Raises `TooLong` when it is longer than
        `limit` bytes (before it is read), `Malformed` when it is cut off, and `Unreachable`."""

    async def finish(self) -> None:
        """No more frames from this side."""

    async def reset(self) -> None:
        """Abandon both directions at once. Never raises."""


class Transport(Protocol):
    """What a network stack must offer. Peer ids are libp2p peer ids in base58 (see `p2p.identity`)."""

    @property
    def peer_id(self) -> str: ...

    async def run(self, listening: Callable[[], None]) -> None:
        """Serve until cancelled; `listening` is called once this peer can dial and be dialled. Every handler is
        registered before. Raises `LocalNetworkFault` (port taken, library missing)."""

    def addresses(self) -> list[str]:
        """Multiaddresses under which this peer can be dialled, each ending in /p2p/<peer id>."""

    def peers(self) -> list[str]:
        """Connected peers."""

    async def dial(self, addresses: Sequence[str]) -> str:
        """Connect by the first address that works; the peer id. Raises `Unreachable`."""

    def remote(self, peer: str) -> str | None:
        """Multiaddress of the other end of the connection with a peer, a direct one before a relayed one (which has
        /p2p-circuit in it); None when there is none, or its address is unknown."""

    async def reserve(self, addresses: Sequence[str]) -> None:
        """Be reachable through the relay that has these addresses, from now on until `release`: the reservation is
        renewed, and the relay dialled again, in the background. While it holds, its address is among `addresses`.
        Raises `Unreachable`: no answer, or refused."""

    async def release(self, relay: str) -> None:
        """No longer be reachable through the relay with this peer id."""

    def origin(self, peer: str) -> Origin:
        """See `Inbound.origin` (p2p/network.py)."""

    def keep_places(self, parties: Collection[str]) -> None:
        """See `Inbound.keep_places` (p2p/network.py)."""

    def relayed(self) -> int:
        """Bytes passed on for others as their relay, since the start."""

    def refusals(self) -> dict[str, int]:
        """Connections of others that were refused since the start, by the limit that refused them."""

    async def open(self, peer: str, protocol: str) -> Stream:
        """A new stream to a connected peer. Raises `Unreachable`."""

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve streams of `protocol`. An exception that leaves the handler resets that stream only; when it returns,
        its side is finished, and what still arrives is discarded until the other side is done."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossip a small message (<= 16 KiB, <= 1 a second)."""

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """Receive a topic's messages, each at most once."""

    async def drop(self, peer: str) -> None:
        """Close every connection with a peer."""
