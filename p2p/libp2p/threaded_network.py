"""The network plane of an asyncio daemon over libp2p: a `Peer` on a trio thread, called from asyncio.

1. asyncio calls that peer through `bridge`: one line of code per method, with the types of `Peer`. Only
   `origin`, which is thread-safe, is called directly.
2. Payload bytes stay on the trio side: a blocked asyncio loop does not stop chunks from being served.
3. Handlers are called in the asyncio loop. `run` raises an error when the thread ends by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.errors import Unreachable
from echo2.p2p.guard import one_error
from echo2.p2p.handlers import Handlers
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.libp2p.trio_bridge import TrioThread
from echo2.p2p.limits.bandwidth import Rate
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.relay_quota import RelayLimits
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.network import GossipHandler
from echo2.p2p.peer.peer import Peer
from echo2.p2p.transport import TRANSPORT_SILENCE_SECONDS

P = ParamSpec("P")
T = TypeVar("T")


class PayloadRates(NamedTuple):
    """Limits on payloads."""

    uplink: Rate = None
    downlink: Rate = None


UNLIMITED_RATES = PayloadRates()


def bridge(
    method: Callable[[Peer], Callable[P, Awaitable[T]]],
) -> Callable[Concatenate["ThreadedPeer", P], Coroutine[Any, Any, T]]:
    """Make a method for asyncio from one of the peer on trio. It raises `Unreachable` unless the network runs."""

    async def call(self: "ThreadedPeer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        thread, peer = self.on_trio()
        return await thread.call(method(peer), *args, **kwargs)

    return call


class ThreadedPeer:
    """`p2p.network.AnyPeer` for asyncio, over libp2p. One `run` per instance."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        listen: Sequence[str],
        *,
        seed: int = 0,
        rates: PayloadRates = UNLIMITED_RATES,
        patience: float = TRANSPORT_SILENCE_SECONDS,
        relay: RelayLimits | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        """`listen`: multiaddresses, none for a peer that only dials. `patience`: seconds without a byte before a stream
        is reset. `relay`: the quotas of its relay service, None for no such service. `limits`: those on connections."""
        self.peer_id = peer_id(public_bytes(key))
        self.handlers = Handlers()
        self.serve = self.handlers.serve
        self._topics: list[tuple[str, GossipHandler]] = []
        self._ready = asyncio.Event()
        self._failure: Exception | None = None
        self._thread: TrioThread | None = None
        self._peer: Peer | None = None

        def build(thread: TrioThread) -> Peer:
            from echo2.p2p.libp2p.transport import LibP2PTransport  # on its thread: it takes most of a second

            transport = LibP2PTransport(key, listen, patience=patience, relay=relay, limits=limits)
            handlers = self.handlers.across(thread.from_trio)
            peer = Peer(transport, seed=seed, uplink=rates.uplink, downlink=rates.downlink, handlers=handlers)
            for topic, handler in self._topics:
                peer.subscribe(topic, thread.from_trio(handler))
            return peer

        self._build = build

    request = bridge(lambda peer: peer.request)
    peers = bridge(lambda peer: peer.peers)
    routes = bridge(lambda peer: peer.routes)
    dial = bridge(lambda peer: peer.dial)
    publish = bridge(lambda peer: peer.publish)
    share = bridge(lambda peer: peer.share)
    unshare = bridge(lambda peer: peer.unshare)
    fetch = bridge(lambda peer: peer.fetch)
    follow = bridge(lambda peer: peer.follow)
    limit = bridge(lambda peer: peer.limit)
    await_uplink = bridge(lambda peer: peer.await_uplink)
    traffic = bridge(lambda peer: peer.traffic)
    addresses = bridge(lambda peer: peer.addresses)
    reserve = bridge(lambda peer: peer.reserve)
    release = bridge(lambda peer: peer.release)

    def on_trio(self) -> tuple[TrioThread, Peer]:
        """Return the trio thread, and the peer, which may be used on that thread alone. Raises `Unreachable`."""
        if self._thread is None or self._peer is None:
            raise Unreachable("the network is not running")
        return self._thread, self._peer

    async def run(self) -> None:
        self._thread = TrioThread("p2p")
        try:
            await self._thread.run(self._main)
            raise Unreachable("the network thread ended by itself")
        except Exception as failure:
            self._failure = failure
            raise
        finally:
            self._ready.set()

    async def ready(self) -> None:
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        self._topics.append((topic, handler))

    def origin(self, peer: str) -> Origin:
        return Origin(peer, peer) if self._peer is None else self._peer.origin(peer)

    async def _main(self) -> None:
        """On trio: build the peer, and run it."""
        thread = self._thread
        assert thread is not None
        self._peer = peer = self._build(thread)
        with one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.run)
                await peer.ready()
                thread.post(self._ready.set)
