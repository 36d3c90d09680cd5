"""What a daemon sees of the network: requests, gossip and payloads, from asyncio.

`Peer` (p2p/peer.py) implements it natively over any transport in the same event loop; `ThreadedPeer`
(p2p/threaded.py) runs the same code on a trio thread over libp2p and bridges each call.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from p2p.limits.origin import Origin

RequestHandler = Callable[[str, bytes], Awaitable[bytes]]
"""(peer id, request bytes) -> answer bytes."""
GossipHandler = Callable[[str, bytes], Awaitable[bool]]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """How a payload is cut and checked. Every field comes from a signed document.

    `hash`: BLAKE3 of the payload, 32 bytes. `length`: bytes. `chunk_size`: bytes, the last chunk may be
    shorter. `chunk_root`: Merkle root (BLAKE3) over the chunks in order.
    """

    hash: bytes
    length: int
    chunk_size: int
    chunk_root: bytes


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Payload bytes moved since start, by way. `relayed`: bytes of any kind passed on for others as their relay.
    `refused`: connections of others that were refused, by the limit that refused them."""

    received: int
    sent: int
    received_by_peer: dict[str, int]
    sent_by_peer: dict[str, int]
    relayed: int = 0
    refused: dict[str, int] = {}


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """What one peer sent of a payload. `began`, `ended`: seconds from the fetch's start to the first chunk asked of the
    peer, and to the last one that came. `nbytes`: verified bytes."""

    peer: str
    nbytes: int
    began: float
    ended: float


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """How a payload came: who fed it, in the order in which they began. `seconds`: from the first call to the file
    under its name, over calls that were cancelled. Zero and empty where the payload was here already."""

    seconds: float = 0.0
    feeds: tuple[Feed, ...] = ()


class Network(Protocol):
    """Everything a daemon may ask of the network plane. All methods are safe in its own event loop only."""

    @property
    def peer_id(self) -> str: ...

    async def run(self) -> None:
        """Serve until cancelled. The other methods work once `ready` is set."""

    async def ready(self) -> None:
        """Wait until the network listens. Raises `LocalFault` (port taken, libp2p missing)."""

    async def addresses(self) -> list[str]: ...

    async def peers(self) -> list[str]: ...

    async def way(self, peer: str) -> str | None:
        """By which way (p2p/multiaddr.py) a connected peer is reached; None: it is not connected."""

    async def dial(self, addresses: Sequence[str]) -> str:
        """Connect; the peer id. Raises `Unreachable`."""

    async def remote(self, peer: str) -> str | None:
        """Multiaddress of the other end of the connection with a peer; with /p2p-circuit in it where it is relayed."""

    async def reserve(self, addresses: Sequence[str]) -> None:
        """Be reachable through the relay with these addresses until `release`. Raises `Unreachable`."""

    async def release(self, relay: str) -> None:
        """No longer be reachable through that relay."""

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        """One question, one answer. Raises `Unreachable` (also after `timeout` seconds) or `Malformed`."""

    def serve(self, method: str, handler: RequestHandler, *, limit: int) -> None:
        """Answer `method`; requests longer than `limit` bytes are refused before they are read.
        Call before `run`. An exception that leaves the handler resets that stream and is logged."""

    async def publish(self, topic: str, data: bytes) -> None: ...

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """Call before `run`."""

    async def share(self, manifest: Manifest, path: Path) -> None:
        """Serve a complete payload file to peers until `unshare`."""

    async def unshare(self, payload_hash: bytes) -> None: ...

    async def fetch(self, manifest: Manifest, path: Path, *, last: str | None = None) -> Fetched:
        """Bring a payload to `path` from connected peers, `last` (the coordinator) only where nobody else
        has a chunk. Each chunk is verified before it is stored, and served to others at once. Resumes from
        `path` + ".part" after a crash. Returns when the whole file is verified, fsynced and renamed; it is
        then shared. Retries peers until cancelled. Tells who sent it."""

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        """The plan of broadcasts, for those under way and those to come: the parent of each stripe (chunk i is of
        stripe i mod their number). A hint: chunks that a parent does not bring come from others. None: no plan.
        `children`: whom the plan lets this peer feed, where it knows: they go first at a limited uplink."""

    def origin(self, peer: str) -> Origin:
        """Where the requests of a peer come from (p2p/limits/origin.py). `peer`: as the handler of a request is told.
        Safe from any thread, and cheap."""

    def keep_places(self, parties: Collection[str]) -> None:
        """Keep a share of the places for connections from these parties, which have accepted work, from now on; instead
        of those named before. Safe from any thread."""

    def unanswered(self, methods: Sequence[str]) -> int:
        """Requests for these methods that have come whole and are not answered yet. Safe from any thread."""

    async def traffic(self) -> Traffic: ...
