"""The interface between this project and any network stack: connections, and streams of frames.

Two implementations exist: `p2p.libp2p.transport`, and for tests and benchmarks `benchmarks.memory_network.transport` (a
whole network in one process, with loss, delay and partition). A transport runs natively in the event loop that owns it:
asyncio for the in-memory one, trio for libp2p. Code written on anyio runs, and is tested, on either. An implementation
documents those of its methods that do more than the interface says.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from echo2.p2p.limits.origin import Origin
from echo2.p2p.multiaddr import Route

StreamHandler = Callable[["Stream"], Awaitable[None]]
TRANSPORT_SILENCE_SECONDS = 20.0
"""Seconds without a byte before a waiting stream is reset."""


class Stream(Protocol):
    """An ordered, bidirectional flow of frames with one peer.

    A frame is `bytes`. Sending never blocks for longer than the watchdog allows: the stream with a peer that makes no
    progress is reset, and every waiting call raises `Unreachable`."""

    @property
    def peer(self) -> str:
        """The authenticated peer id of the other side."""

    def hurry(self) -> None:
        """Give up the stream, from now on, where its connection does not move at the least rate
        (p2p/limits/least_rate.py) while this side waits."""

    async def send(self, *pieces: bytes | memoryview) -> None:
        """Send one frame, given in pieces that must not change later. Raises `Unreachable`."""

    async def receive(self, limit: int) -> bytes | None:
        """Receive one frame; None after the other side finished. Raises `TooLong` for one of more than `limit` bytes
        (before it is read), `Malformed` for a truncated one, and `Unreachable`."""

    async def finish(self) -> None:
        """Finish this side: no more frames follow."""

    async def reset(self) -> None:
        """Abandon both directions at once. Never raises."""


class Reach(Protocol):
    """The relays of a peer, and the origins of the peers that connect to it."""

    async def reserve(self, addresses: Sequence[str]) -> None:
        """Stay reachable through the relay at these addresses until `release`. The reservation is renewed, and the
        relay redialled, in the background; meanwhile its address is among `addresses`. Raises `Unreachable`: no answer,
        or refused."""

    async def release(self, relay: str) -> None:
        """Give up the reservation at the relay with this peer id."""

    def origin(self, peer: str) -> Origin:
        """Return the origin of a peer's requests (p2p/limits/origin.py). `peer`: the name that the handler of a request
        gets. Thread-safe, and cheap."""


class Transport(Reach, Protocol):
    """The interface of a network stack. Peer ids are libp2p peer ids in base58 (see `p2p.identity`)."""

    @property
    def peer_id(self) -> str: ...

    async def run(self, listening: Callable[[], None]) -> None:
        """Serve until cancelled; `listening` is called once this peer can dial and be dialled. Every handler must be
        registered before. Raises `LocalNetworkFault` (port taken, library missing)."""

    def addresses(self) -> list[str]:
        """Return the multiaddresses at which this peer can be dialled, each ending in /p2p/<peer id>."""

    def peers(self) -> list[str]:
        """Return the connected peers."""

    def routes(self) -> dict[str, Route]:
        """Return the route to each connected peer; of several connections a direct one precedes a relayed one."""

    async def dial(self, addresses: Sequence[str]) -> str:
        """Connect by the first address that works; return the peer id. Raises `Unreachable`."""

    def remote(self, peer: str) -> str | None:
        """Return the multiaddress of the other end of the connection with a peer; None without a connection or a known
        address. Of several connections a direct one precedes a relayed one, whose address contains /p2p-circuit."""

    def count_relayed_bytes(self) -> int:
        """Return the bytes forwarded for others as their relay, since the start."""

    def refusals(self) -> dict[str, int]:
        """Return the number of refused incoming connections since the start, by the limit that refused them."""

    async def open(self, peer: str, protocol: str) -> Stream:
        """Open a stream to a connected peer. Raises `Unreachable`."""

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve streams of `protocol`. An exception that leaves the handler resets that stream only. When the handler
        returns, its side is finished; later frames are discarded until the other side has finished."""

    async def drop(self, peer: str) -> None:
        """Close every connection with a peer."""
