"""A node's ways to others, the best one first: direct and relayed over libp2p, then plain HTTPS to the coordinator.

Rules
1. An address says its way (p2p/multiaddr.py). Only the ways that the owner admits are tried, and in their order.
2. A request goes by the best way that stands. A way by which one just failed is no way to that peer for `PENALTY`
   seconds, unless it is dialled again before: a connection that swallows everything must not hide a way that works.
3. A payload comes over libp2p while that moves; else over HTTPS, and back. Both go on from the same part on disk.
4. Over HTTPS nothing more is asked once a request went well by a better way.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Final

from p2p.errors import Declined, P2PError, Unreachable
from p2p.guard import one_error
from p2p.https_client import HttpsClient
from p2p.limits.origin import Origin
from p2p.multiaddr import WAYS, Way, way_of
from p2p.network import Fetched, GossipHandler, Manifest, Network, RequestHandler, Traffic

PENALTY: Final = 60.0
STALL: Final = 15.0
"""Seconds without a byte of payload after which another way is tried."""
LOOK: Final = 0.5
"""Seconds between two looks at a fetch."""


class Ways:
    """`p2p.network.Network` over libp2p and HTTPS, or one of them. `clock`: monotonic seconds."""

    def __init__(
        self,
        direct: Network | None,
        https: HttpsClient | None,
        *,
        via: Sequence[Way] = WAYS,
        stall: float = STALL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`direct`: libp2p's. At least one of the two is given. `stall`: see `STALL`."""
        self._direct, self._https, self._stall, self._clock = direct, https, stall, clock
        self._via = [way for way in via if (https if way == "https" else direct) is not None]
        self._all: list[Network] = [network for network in (direct, https) if network is not None]
        self._bad: dict[tuple[Network, str], float] = {}

    @property
    def peer_id(self) -> str:
        """See `Network`."""
        return self._all[0].peer_id

    async def run(self) -> None:
        """See `Network`."""
        with one_error():
            async with asyncio.TaskGroup() as group:
                for network in self._all:
                    group.create_task(network.run())

    async def ready(self) -> None:
        """See `Network`."""
        for network in self._all:
            await network.ready()

    async def addresses(self) -> list[str]:
        """See `Network`."""
        return [address for network in self._all for address in await network.addresses()]

    async def peers(self) -> list[str]:
        """Those that some way leads to, by rule 2."""
        found = [peer for network in self._all for peer in await self._reached(network)]
        return list(dict.fromkeys(found))

    async def way(self, peer: str) -> str | None:
        """See `Network`."""
        network = await self._best(peer)
        return None if network is None else await network.way(peer)

    async def remote(self, peer: str) -> str | None:
        """See `Network`."""
        network = await self._best(peer)
        return None if network is None else await network.remote(peer)

    async def reserve(self, addresses: Sequence[str]) -> None:
        """See `Network`."""
        if self._direct is None:
            raise Unreachable("this node does not go over libp2p")
        await self._direct.reserve(addresses)

    async def release(self, relay: str) -> None:
        """See `Network`."""
        if self._direct is not None:
            await self._direct.release(relay)

    async def dial(self, addresses: Sequence[str]) -> str:
        """See `Network`. Raises also `PeerFault` where that is all that came of it."""
        troubles: list[P2PError] = []
        for way in self._via:
            by_way = [address for address in addresses if way_of(address) == way]
            if by_way:
                try:
                    return await self._dial(way, by_way)
                except P2PError as error:
                    troubles.append(error)
        if len(troubles) == 1:
            raise troubles[0]
        raise Unreachable("; ".join(map(str, troubles)) or f"this node does not go by the way of {list(addresses)}")

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        """See `Network`."""
        network = await self._best(peer)
        if network is None:
            raise Unreachable(f"{peer} is not connected")
        try:
            answer = await network.request(peer, method, payload, timeout=timeout)
        except Declined:
            raise
        except Unreachable:
            self._bad[network, peer] = self._clock() + PENALTY
            raise
        if self._https is not None and network is not self._https and peer in await self._https.peers():
            await self._https.leave()
        return answer

    def serve(self, method: str, handler: RequestHandler, *, limit: int) -> None:
        """See `Network`."""
        for network in self._all:
            network.serve(method, handler, limit=limit)

    def origin(self, peer: str) -> Origin:
        """See `Network`."""
        return self._all[0].origin(peer)

    def keep_places(self, parties: Collection[str]) -> None:
        """See `Network`."""
        for network in self._all:
            network.keep_places(parties)

    def unanswered(self, methods: Sequence[str]) -> int:
        """See `Network`."""
        return sum(network.unanswered(methods) for network in self._all)

    async def publish(self, topic: str, data: bytes) -> None:
        """See `Network`."""
        for network in self._all:
            await network.publish(topic, data)

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """See `Network`."""
        for network in self._all:
            network.subscribe(topic, handler)

    async def share(self, manifest: Manifest, path: Path) -> None:
        """See `Network`."""
        for network in self._all:
            await network.share(manifest, path)

    async def unshare(self, payload_hash: bytes) -> None:
        """See `Network`."""
        for network in self._all:
            await network.unshare(payload_hash)

    async def fetch(self, manifest: Manifest, path: Path, *, last: str | None = None) -> Fetched:
        """See `Network`; rule 3. Tells of the way that brought it to its end."""
        now, other = self._all[0], self._all[-1]
        if now is other:
            return await now.fetch(manifest, path, last=last)
        while (fetched := await self._while_it_moves(now, other, now.fetch(manifest, path, last=last))) is None:
            now, other = other, now
        await self.share(manifest, path)
        return fetched

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        """See `Network`."""
        for network in self._all:
            await network.follow(parents, children)

    async def traffic(self) -> Traffic:
        """See `Network`."""
        parts = [await network.traffic() for network in self._all]
        return Traffic(
            received=sum(part.received for part in parts),
            sent=sum(part.sent for part in parts),
            received_by_peer=_added([part.received_by_peer for part in parts]),
            sent_by_peer=_added([part.sent_by_peer for part in parts]),
            relayed=sum(part.relayed for part in parts),
            refused=_added([part.refused for part in parts]),
        )

    async def _dial(self, way: Way, addresses: list[str]) -> str:
        network = self._https if way == "https" else self._direct
        assert network is not None
        peer = await network.dial(addresses)
        self._bad.pop((network, peer), None)
        return peer

    async def _best(self, peer: str) -> Network | None:
        for network in self._all:
            if peer in await self._reached(network):
                return network
        return None

    async def _reached(self, network: Network) -> list[str]:
        now = self._clock()
        self._bad = {key: until for key, until in self._bad.items() if until > now}
        return [peer for peer in await network.peers() if (network, peer) not in self._bad]

    async def _while_it_moves(
        self, by: Network, other: Network, fetch: Coroutine[None, None, Fetched]
    ) -> Fetched | None:
        """What came of a fetch; None: it stood, and the other way stands open."""
        task = asyncio.ensure_future(fetch)
        try:
            received, since = -1, self._clock()
            while not task.done():
                await asyncio.wait([task], timeout=min(LOOK, self._stall))
                if (seen := (await by.traffic()).received) != received:
                    received, since = seen, self._clock()
                patience = self._stall if await self._reached(by) else 0.0
                if not task.done() and self._clock() - since >= patience and await self._reached(other):
                    return None
            return await task
        finally:
            task.cancel()
            await asyncio.wait([task])  # the part on disk is let go of before the other way takes it up
            if not task.cancelled():
                task.exception()


def _added(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in counts:
        for peer, number in part.items():
            total[peer] = total.get(peer, 0) + number
    return total
