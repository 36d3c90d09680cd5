"""One peer on any transport, in the transport's own event loop: requests, gossip and payloads.

Written on anyio: under asyncio it runs on the in-memory transport, under trio on libp2p (see p2p/threaded.py), and
the tests of the one are the tests of the other.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import anyio
import msgspec

from p2p import reachable, rpc
from p2p.broadcast import PROTOCOL as CHUNKS
from p2p.broadcast import Broadcast
from p2p.errors import Unreachable
from p2p.guard import guarded
from p2p.limits.origin import Origin
from p2p.limits.slots import PER_PEER
from p2p.multiaddr import way_of
from p2p.network import Fetched, GossipHandler, Manifest, RequestHandler, Traffic
from p2p.transport import Transport


class Peer:
    """`p2p.network.Network` over a `Transport`. `seed` orders the chunks that it asks for."""

    def __init__(
        self, transport: Transport, *, seed: int, uplink: float | None = None, downlink: float | None = None
    ) -> None:
        """`uplink`, `downlink`: bytes of payload per second to and from all peers together, None for no limit."""
        self._transport = transport
        self._ready = anyio.Event()
        self._failure: Exception | None = None
        self._server = rpc.Server(transport.origin)
        self._unanswered = Counter[str]()
        self._asking: dict[str, anyio.CapacityLimiter] = {}
        self._broadcast = Broadcast(transport, seed=seed, uplink=uplink, downlink=downlink)
        self._server.serve(reachable.METHOD, reachable.DialBack(transport).answer, limit=reachable.LIMIT)
        transport.handle(rpc.PROTOCOL, self._server.answer)
        transport.handle(CHUNKS, self._broadcast.serve_chunks)

    @property
    def peer_id(self) -> str:
        """See `Network`."""
        return self._transport.peer_id

    async def run(self) -> None:
        """See `Network`."""
        try:
            await self._transport.run(self._ready.set)
        except Exception as failure:
            self._failure = failure
            raise
        finally:
            self._ready.set()
            self._broadcast.close()

    async def ready(self) -> None:
        """See `Network`."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    async def addresses(self) -> list[str]:
        """See `Network`."""
        return self._transport.addresses()

    async def peers(self) -> list[str]:
        """See `Network`."""
        return self._transport.peers()

    async def way(self, peer: str) -> str | None:
        """See `Network`."""
        if peer not in self._transport.peers():
            return None
        return way_of(self._transport.remote(peer) or "")

    async def dial(self, addresses: Sequence[str]) -> str:
        """See `Network`."""
        return await self._transport.dial(addresses)

    async def remote(self, peer: str) -> str | None:
        """See `Network`."""
        return self._transport.remote(peer)

    async def reserve(self, addresses: Sequence[str]) -> None:
        """See `Network`."""
        await self._transport.reserve(addresses)

    async def release(self, relay: str) -> None:
        """See `Network`."""
        await self._transport.release(relay)

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        """See `Network`."""
        # As many as the other side works on at once; the rest wait here, and their timeout runs.
        limiter = self._asking.setdefault(peer, anyio.CapacityLimiter(PER_PEER))
        try:
            with anyio.fail_after(timeout):
                async with limiter:
                    return await rpc.ask(await self._transport.open(peer, rpc.PROTOCOL), method, payload)
        except TimeoutError:
            raise Unreachable(f"{peer} did not answer {method} within {timeout:g} s") from None
        finally:
            if not limiter.statistics().borrowed_tokens and not limiter.statistics().tasks_waiting:
                self._asking.pop(peer, None)

    def serve(self, method: str, handler: RequestHandler, *, limit: int) -> None:
        """See `Network`."""

        async def counted(peer: str, request: bytes) -> bytes:
            self._unanswered[method] += 1
            try:
                return await handler(peer, request)
            finally:
                self._unanswered[method] -= 1

        self._server.serve(method, counted, limit=limit)

    def origin(self, peer: str) -> Origin:
        """See `Network`."""
        return self._transport.origin(peer)

    def keep_places(self, parties: Collection[str]) -> None:
        """See `Network`."""
        self._transport.keep_places(parties)

    def unanswered(self, methods: Sequence[str]) -> int:
        """See `Network`."""
        return sum(self._unanswered[method] for method in methods)

    async def publish(self, topic: str, data: bytes) -> None:
        """See `Network`."""
        await self._transport.publish(topic, data)

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """See `Network`."""
        self._transport.subscribe(topic, guarded(handler))

    async def share(self, manifest: Manifest, path: Path) -> None:
        """See `Network`."""
        await self._broadcast.share(manifest, path)

    async def unshare(self, payload_hash: bytes) -> None:
        """See `Network`."""
        await self._broadcast.unshare(payload_hash)

    async def fetch(self, manifest: Manifest, path: Path, *, last: str | None = None) -> Fetched:
        """See `Network`."""
        return await self._broadcast.fetch(manifest, path, last=last)

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        """See `Network`."""
        self._broadcast.follow(parents, children)

    async def turn(self, peer: str, nbytes: int) -> None:
        """Wait until `nbytes` may leave this machine to `peer` by another way than this one: the uplink is one."""
        await self._broadcast.turn(peer, nbytes)

    async def traffic(self) -> Traffic:
        """See `Network`."""
        moved, transport = self._broadcast.traffic(), self._transport
        return msgspec.structs.replace(moved, relayed=transport.relayed(), refused=transport.turned_away())
