"""What a daemon sees of the network, by what it needs: small protocols, and `Network`, the parts that it is given.

    part          | `Peer`, `ThreadedPeer` | over HTTPS, node        | over HTTPS, coordinator
    Rpc, Links    | both                   | `HttpsClient`           |
    Gossip        | both ways              | heard (`HttpsClient`)   | published (`HttpsServer`)
    payloads      | all                    | fetched (`HttpsClient`) | shared (`HttpsServer`)
    Inbound       | all                    |                         | addresses, places (`HttpsServer`)
    `Handlers`    | answered from          |                         | answered from (`HttpsServer`)

`Peer` (p2p/peer/peer.py) runs over any transport in its own event loop. `ThreadedPeer` (p2p/libp2p/threaded_network.py)
is one on a trio thread over libp2p, called from asyncio. `FailoverNetwork` (p2p/https/failover.py) is a node's choice
between one of these and HTTPS; `PeerAndHttps` (p2p/https/combined_network.py) serves a coordinator at both. Methods are
safe in the daemon's event loop only, except where they say more.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from p2p.handlers import Handlers
from p2p.limits.origin import Origin
from p2p.transport import GossipHandler


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
    """Payload bytes moved since start, by peer. `relayed`: bytes of any kind passed on for others as their relay.
    `refused`: connections of others that were refused, by the limit that refused them."""

    received: int
    sent: int
    received_by_peer: dict[str, int]
    sent_by_peer: dict[str, int]
    relayed: int = 0
    refused: dict[str, int] = {}


class PeerTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """What one peer sent of a payload. `began`, `ended`: seconds from the fetch's start to the first chunk asked of the
    peer, and to the last one that came. `nbytes`: verified bytes."""

    peer: str
    nbytes: int
    began: float
    ended: float


class FetchReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a payload came: who fed it, in the order in which they began. `seconds`: from the first call to the file
    under its name, over calls that were cancelled. Zero and empty where the payload was here already."""

    seconds: float = 0.0
    feeds: tuple[PeerTransfer, ...] = ()


class Host(Protocol):
    """The life of a network. The methods of the parts work once `ready` returns."""

    async def run(self) -> None:
        """Serve until cancelled."""

    async def ready(self) -> None:
        """Wait until the network listens. Raises `LocalNetworkFault` (port taken, libp2p missing)."""


class Rpc(Protocol):
    """Ask connected peers. What is asked of this process: `p2p.handlers.Handlers`."""

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        """Send one request and return its answer. Raises `Unreachable` (also after `timeout` seconds), `Malformed`."""


class Links(Protocol):
    """Connections with peers."""

    @property
    def peer_id(self) -> str:
        """This peer's own id."""

    async def peers(self) -> list[str]:
        """Return the connected peers."""

    async def route(self, peer: str) -> str | None:
        """Return by which way (p2p/multiaddr.py) a connected peer is reached; None: it is not connected."""

    async def dial(self, addresses: Sequence[str]) -> str:
        """Connect; return the peer id. Raises `Unreachable`."""


class Gossip(Protocol):
    """Small messages to all peers of a topic."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send a message (p2p/transport.py has the limits)."""

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """Hear a topic's messages. Call before `run`."""


class PayloadExchange(Protocol):
    """Payload files to and from peers, in verified chunks."""

    async def share(self, manifest: Manifest, path: Path) -> None:
        """Serve a complete payload file to peers until `unshare`."""

    async def unshare(self, payload_hash: bytes) -> None:
        """Serve it no longer."""

    async def fetch(self, manifest: Manifest, path: Path, *, fallback: str | None = None) -> FetchReport:
        """Bring a payload to `path` from connected peers, `fallback` (the coordinator) only where nobody else
        has a chunk. Each chunk is verified before it is stored, and served to others at once. Resumes from
        `path` + ".part" after a crash. Returns when the whole file is verified, fsynced and renamed; it is
        then shared. Retries peers until cancelled. Tells who sent it."""

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        """Set the plan of broadcasts, for those under way and those to come: the parent of each stripe (chunk i is of
        stripe i mod their number). A hint: chunks that a parent does not bring come from others. None: no plan.
        `children`: whom the plan lets this peer feed, where it knows: they go first at a limited uplink."""

    async def traffic(self) -> Traffic:
        """Return what was moved so far."""


class Inbound(Protocol):
    """How others reach this process."""

    async def addresses(self) -> list[str]:
        """Return the multiaddresses under which this peer can be dialled."""

    async def reserve(self, addresses: Sequence[str]) -> None:
        """Be reachable through the relay with these addresses until `release`. Raises `Unreachable`."""

    async def release(self, relay: str) -> None:
        """No longer be reachable through that relay."""

    def origin(self, peer: str) -> Origin:
        """Return where the requests of a peer come from (p2p/limits/origin.py). `peer`: as the handler of a request is
        told. Safe from any thread, and cheap."""

    def keep_places(self, parties: Collection[str]) -> None:
        """Keep a share of the places for connections from these parties, which have accepted work, from now on; instead
        of those named before. Safe from any thread."""


class Uplink(Protocol):
    """This machine's limit on payload bytes that leave, for what no chunk stream carries."""

    async def await_uplink(self, peer: str, nbytes: int) -> None:
        """Wait until so many bytes may leave to `peer`."""


class AnyPeer(Host, Rpc, Links, Gossip, PayloadExchange, Inbound, Protocol):
    """A peer with every part: for those who put networks together, and hand the parts out."""

    @property
    def handlers(self) -> Handlers:
        """The methods that it answers."""


@dataclass(frozen=True)
class Network:
    """The parts of a daemon's network. A daemon hands each to those of its own parts that need it."""

    host: Host
    handlers: Handlers
    rpc: Rpc
    links: Links
    gossip: Gossip
    exchange: PayloadExchange
    inbound: Inbound

    @classmethod
    def of(cls, peer: AnyPeer) -> "Network":
        """Return the parts of one peer."""
        return cls(peer, peer.handlers, peer, peer, peer, peer, peer)
