"""The network plane of an asyncio daemon over libp2p: `Peer` on a trio thread, each call bridged.

1. Payload bytes stay on the trio side: a blocked asyncio loop does not stop chunks from being served.
2. Handlers are called in the asyncio loop, at most `bridge.CALLS` at once.
3. The thread's death is an error of `run`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2p.bridge import TrioThread
from p2p.errors import LocalFault, Unreachable
from p2p.guard import one_error
from p2p.identity import peer_id, public_bytes
from p2p.limits.origin import Origin
from p2p.limits.subnets import PeerLimits
from p2p.network import Fetched, GossipHandler, Manifest, RequestHandler, Traffic
from p2p.peer import Peer
from p2p.relay import RelayLimits
from p2p.transport import Transport

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds without a byte before a waiting stream is reset."""


class ThreadedPeer:
    """`p2p.network.Network` for asyncio, over libp2p. One `run` an instance."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        listen: Sequence[str],
        *,
        seed: int = 0,
        uplink: float | None = None,
        downlink: float | None = None,
        patience: float = PATIENCE,
        relay: RelayLimits | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        """`listen`: multiaddresses, none for a peer that only dials. `uplink`, `downlink`: bytes of payload per
        second, None for no limit. `patience`: seconds without a byte before a stream is reset. `relay`: what it relays
        for others, None for nothing. `limits`: of connections."""
        self._key = key
        self._listen = list(listen)
        self._seed = seed
        self._uplink, self._downlink = uplink, downlink
        self._patience = patience
        self._relay, self._limits = relay, limits
        self._peer_id = peer_id(public_bytes(key))
        self._methods: list[tuple[str, RequestHandler, int]] = []
        self._topics: list[tuple[str, GossipHandler]] = []
        self._ready = asyncio.Event()
        self._failure: Exception | None = None
        self._thread: TrioThread | None = None
        self._peer: Peer | None = None
        self._kept: Collection[str] = ()

    @property
    def peer_id(self) -> str:
        """See `Network`."""
        return self._peer_id

    async def run(self) -> None:
        """See `Network`."""
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
        """See `Network`."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    async def addresses(self) -> list[str]:
        """See `Network`."""
        return await self._call(lambda peer: peer.addresses())

    async def peers(self) -> list[str]:
        """See `Network`."""
        return await self._call(lambda peer: peer.peers())

    async def way(self, peer: str) -> str | None:
        """See `Network`."""
        return await self._call(lambda own: own.way(peer))

    async def dial(self, addresses: Sequence[str]) -> str:
        """See `Network`."""
        return await self._call(lambda peer: peer.dial(addresses))

    async def remote(self, peer: str) -> str | None:
        """See `Network`."""
        return await self._call(lambda own: own.remote(peer))

    async def reserve(self, addresses: Sequence[str]) -> None:
        """See `Network`."""
        await self._call(lambda peer: peer.reserve(addresses))

    async def release(self, relay: str) -> None:
        """See `Network`."""
        await self._call(lambda peer: peer.release(relay))

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        """See `Network`."""
        return await self._call(lambda own: own.request(peer, method, payload, timeout=timeout))

    def serve(self, method: str, handler: RequestHandler, *, limit: int) -> None:
        """See `Network`."""
        self._methods.append((method, handler, limit))

    def origin(self, peer: str) -> Origin:
        """See `Network`."""
        return Origin(peer, peer) if self._peer is None else self._peer.origin(peer)

    def keep_places(self, parties: Collection[str]) -> None:
        """See `Network`."""
        self._kept = parties
        if self._peer is not None:
            self._peer.keep_places(parties)

    def unanswered(self, methods: Sequence[str]) -> int:
        """See `Network`."""
        return 0 if self._peer is None else self._peer.unanswered(methods)

    async def publish(self, topic: str, data: bytes) -> None:
        """See `Network`."""
        await self._call(lambda peer: peer.publish(topic, data))

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """See `Network`."""
        self._topics.append((topic, handler))

    async def share(self, manifest: Manifest, path: Path) -> None:
        """See `Network`."""
        await self._call(lambda peer: peer.share(manifest, path))

    async def unshare(self, payload_hash: bytes) -> None:
        """See `Network`."""
        await self._call(lambda peer: peer.unshare(payload_hash))

    async def fetch(self, manifest: Manifest, path: Path, *, last: str | None = None) -> Fetched:
        """See `Network`."""
        return await self._call(lambda peer: peer.fetch(manifest, path, last=last))

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        """See `Network`."""
        await self._call(lambda peer: peer.follow(parents, children))

    async def turn(self, peer: str, nbytes: int) -> None:
        """See `Peer.turn`."""
        if self._uplink is not None:
            await self._call(lambda own: own.turn(peer, nbytes))

    async def traffic(self) -> Traffic:
        """See `Network`."""
        return await self._call(lambda peer: peer.traffic())

    async def _call(self, method: Callable[[Peer], Awaitable[T]]) -> T:
        if self._thread is None or self._peer is None:
            raise Unreachable("the network is not running")
        return await self._thread.call(method, self._peer)

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

    def _build(self, thread: TrioThread) -> Peer:
        transport = _libp2p_transport(self._key, self._listen, self._patience, self._relay, self._limits)
        transport.keep_places(self._kept)
        peer = Peer(transport, seed=self._seed, uplink=self._uplink, downlink=self._downlink)
        for method, handler, limit in self._methods:
            peer.serve(method, _in_asyncio(thread, handler), limit=limit)
        for topic, hear in self._topics:
            peer.subscribe(topic, _in_asyncio(thread, hear))
        return peer


def _in_asyncio(
    thread: TrioThread, handler: Callable[[str, bytes], Awaitable[T]]
) -> Callable[[str, bytes], Awaitable[T]]:
    async def bridged(peer: str, data: bytes) -> T:
        return await thread.call_back(handler, peer, data)

    return bridged


def _libp2p_transport(
    key: Ed25519PrivateKey,
    listen: list[str],
    patience: float,
    relay: RelayLimits | None,
    limits: PeerLimits | None,
) -> Transport:
    try:
        from p2p.libp2p import LibP2PTransport
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "libp2p":
            raise
        raise LocalFault("libp2p is not installed: pip install --no-deps libp2p==0.8.1") from None
    return LibP2PTransport(key, listen, patience=patience, relay=relay, limits=limits)
