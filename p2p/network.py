"""The network as the daemons see it: small protocols by purpose, and `Network`, the parts that a daemon is given.

    part          | `Peer`, `ThreadedPeer` | over HTTPS, node         | over HTTPS, coordinator
    Rpc, Links    | both                   | `HttpsClient`            |
    Gossip        | both directions        | receives (`HttpsClient`) | publishes (`HttpsServer`)
    payloads      | all                    | fetches (`HttpsClient`)  | shares (`HttpsServer`)
    Inbound       | all                    |                          | addresses, origins, places (`HttpsServer`)
    `Handlers`    | answers from them      |                          | answers from them (`HttpsServer`)

`Peer` (p2p/peer/peer.py) runs over any transport in its own event loop. `ThreadedPeer` (p2p/libp2p/threaded_network.py)
runs one on a trio thread over libp2p, called from asyncio. `FailoverNetwork` (p2p/https/failover.py) switches a node
between one of these and HTTPS; `PeerAndHttps` (p2p/https/combined_network.py) serves a coordinator at both. Methods may
be called in the daemon's event loop only, unless they state more. A class that has a part documents those of its
methods that do more than the part says.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from echo2.p2p.handlers import Handlers
from echo2.p2p.multiaddr import Route
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.transport import Reach

GossipHandler = Callable[[str, bytes], Awaitable[bool]]
"""(id of the connected peer that pushed it, data) -> whether the message is valid, and newer than all before."""
GOSSIP_LIMIT = 16 << 10
"""Bytes of the largest gossip message."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Payload bytes transferred since the start, those received also by peer, of the last senders that came. `relayed`:
    bytes of any kind forwarded for others as their relay. `refused`: refused incoming connections, by the limit that
    refused them."""

    received: int
    sent: int
    received_by_peer: dict[str, int]
    relayed: int = 0
    refused: dict[str, int] = {}


class PeerTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """The transfer of a payload from one peer. `began`, `ended`: seconds from the fetch's start to the first chunk
    requested from the peer, and to the last one received. `nbytes`: verified bytes."""

    peer: str
    nbytes: int
    began: float
    ended: float


class FetchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a fetch. `feeds`: the senders, in the order in which they began. `seconds`: seconds from the first
    call to the finished file, cancelled calls included. Both are zero or empty if the payload was already on disk."""

    seconds: float = 0.0
    feeds: tuple[PeerTransfer, ...] = ()


class Host(Protocol):
    """The lifetime of a network. The methods of the parts work once `ready` returns."""

    async def run(self) -> None:
        """Serve until cancelled."""

    async def ready(self) -> None:
        """Wait until the network listens. Raises `LocalNetworkFault` (port taken)."""


class Rpc(Protocol):
    """Requests to connected peers. The requests of other peers are answered by `p2p.handlers.Handlers`."""

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        """Send one request and return its answer. Raises `Unreachable` (also after `timeout` seconds), `Malformed`."""


class Links(Protocol):
    """The connections to peers."""

    @property
    def peer_id(self) -> str:
        """This peer's own id."""

    async def peers(self) -> list[str]:
        """Return the connected peers."""

    async def routes(self) -> dict[str, Route]:
        """Return the route (p2p/multiaddr.py) to each connected peer."""

    async def dial(self, addresses: Sequence[str]) -> str:
        """Connect; return the peer id. Raises `Unreachable`."""


class Gossip(Protocol):
    """Small messages to all peers of a topic; a newer one replaces those before (p2p/peer/gossip.py)."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send a message, in the background. Raises `LocalNetworkFault` for one of more than `GOSSIP_LIMIT` bytes."""

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """Receive a topic's messages. Call before `run`."""


class PayloadExchange(Protocol):
    """Payload files to and from peers, in verified chunks."""

    async def share(self, manifest: Manifest, path: Path) -> None:
        """Serve a complete payload file to peers until `unshare`."""

    async def unshare(self, payload_hash: bytes) -> None:
        """Stop serving a payload."""

    async def fetch(self, manifest: Manifest, path: Path, *, fallback: str | None = None) -> FetchReport:
        """Fetch a payload to `path` from connected peers; from `fallback` (the coordinator) only chunks that no other
        peer has. Each chunk is verified before it is stored, and served to others at once. A fetch resumes from `path`
        + ".part" after a crash, and retries peers until cancelled. It returns once the whole file is verified, fsynced,
        renamed and shared."""

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        """Set the plan of the current and later broadcasts: the parent of each stripe (chunk i belongs to stripe i mod
        their number). The plan is a hint: chunks that a parent does not send come from others. Empty: no plan.
        `children`: the peers that the plan assigns to this one, if known; they go first at a limited uplink."""

    async def limit(self, uplink: float | None, downlink: float | None) -> None:
        """Limit the payload bytes per second to and from all peers together, from now on; None: no limit."""

    async def traffic(self) -> Traffic:
        """Return the bytes transferred so far."""


class Inbound(Reach, Protocol):
    """The incoming side of this process: its addresses and relays, and the origins of the peers that connect."""

    async def addresses(self) -> list[str]:
        """Return the multiaddresses at which this peer can be dialled."""


class Uplink(Protocol):
    """This machine's limit on outgoing payload bytes, for data sent outside a chunk stream."""

    async def await_uplink(self, peer: str, nbytes: int) -> None:
        """Wait until `nbytes` may leave to `peer`."""


class AnyPeer(Host, Rpc, Links, Gossip, PayloadExchange, Inbound, Protocol):
    """A peer with every part, for code that assembles networks and hands the parts out."""

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
