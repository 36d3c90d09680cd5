"""A node's routes to peers, the best one first: direct and relayed over libp2p, then plain HTTPS to the coordinator.

Rules
1. An address implies its route (p2p/multiaddr.py). Only the routes that the owner permits are tried, in their order.
2. A request takes the best connected route. After a request without an answer, that route to the peer is skipped for
   `PENALTY_SECONDS` seconds, unless it is dialled again before. So a dead connection hides no working route.
3. A payload is fetched over libp2p first. A fetch that gets no bytes moves to HTTPS, and likewise back. Both
   continue the same partial file on disk.
4. HTTPS requests to a peer stop once a request to that peer succeeded by a better route.
5. A node that is connected over HTTPS alone cannot be called: its handlers and shares are not reachable.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from echo2.p2p.errors import Declined, P2PError, Unreachable
from echo2.p2p.guard import one_error
from echo2.p2p.handlers import Handlers
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.limits.origin import Origin
from echo2.p2p.multiaddr import ROUTES, Route, route_of
from echo2.p2p.network import AnyPeer, FetchReport, GossipHandler, Network, Traffic
from echo2.p2p.payload_manifest import Manifest

PENALTY_SECONDS: Final = 60.0
STALL_SECONDS: Final = 15.0
"""Seconds without a byte of payload after which a fetch moves to the other network, if that is connected."""
PROGRESS_POLL_SECONDS: Final = 0.5
"""Seconds between two progress checks of a fetch."""


class FailoverNetwork:
    """A node's network over libp2p, HTTPS or both, which chooses the route of each dial, request and fetch."""

    def __init__(
        self,
        direct: AnyPeer | None,
        https: HttpsClient | None,
        *,
        routes: Sequence[Route] = ROUTES,
        stall: float = STALL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`direct`: the libp2p network; at least one of the two is given. `routes`: those permitted, best first.
        `stall`: see `STALL_SECONDS`. `clock`: monotonic seconds."""
        self._direct: AnyPeer | NoLibp2p = NoLibp2p() if direct is None else direct
        self._https = https
        self._stall = stall
        self._clock = clock
        self._routes = [route for route in routes if (https if route == "https" else direct) is not None]
        self._all = [one for one in (direct, https) if one is not None]
        self.peer_id = self._all[0].peer_id
        self.publish, self.share, self.unshare = self._direct.publish, self._direct.share, self._direct.unshare
        self.follow, self.limit = self._direct.follow, self._direct.limit
        self._skipped_until: dict[tuple[AnyPeer | HttpsClient, str], float] = {}

    @property
    def network(self) -> Network:
        """The parts of the network; those that HTTPS cannot serve come from libp2p alone."""
        alone = self if self._https is not None or isinstance(self._direct, NoLibp2p) else self._direct
        return Network(self, self._direct.handlers, self, self, alone, alone, self._direct)

    async def run(self) -> None:
        with one_error():
            async with asyncio.TaskGroup() as group:
                for one in self._all:
                    group.create_task(one.run())

    async def ready(self) -> None:
        for one in self._all:
            await one.ready()

    async def peers(self) -> list[str]:
        """Return the peers with a route that is not skipped (rule 2)."""
        peers = [peer for one in self._all for peer in await self._reachable_peers(one)]
        return list(dict.fromkeys(peers))

    async def routes(self) -> dict[str, Route]:
        """Return the first route to each peer that is not skipped (rule 2)."""
        routes: dict[str, Route] = {}
        for one in self._all:
            reachable, by_peer = await self._reachable_peers(one), await one.routes()
            routes = {peer: by_peer[peer] for peer in reachable if peer in by_peer} | routes
        return routes

    async def dial(self, addresses: Sequence[str]) -> str:
        """See `Links`. Raises also `PeerFault` where that was the only failure."""
        troubles: list[P2PError] = []
        for route in self._routes:
            by_route = [address for address in addresses if route_of(address) == route]
            if by_route:
                try:
                    return await self._dial(route, by_route)
                except P2PError as error:
                    troubles.append(error)
        if len(troubles) == 1:
            raise troubles[0]
        raise Unreachable(
            "; ".join(map(str, troubles)) or f"no route to {list(addresses)}: their kind is not among the setting `via`"
        )

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        best = await self._best(peer)
        if best is None:
            raise Unreachable(f"{peer} is not connected")
        try:
            answer = await best.request(peer, method, payload, timeout=timeout)
        except Declined:
            raise
        except Unreachable:
            self._skipped_until[best, peer] = self._clock() + PENALTY_SECONDS
            raise
        if self._https is not None and best is not self._https and peer in await self._https.peers():
            await self._https.disconnect()
        return answer

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        for one in self._all:
            one.subscribe(topic, handler)

    async def fetch(self, manifest: Manifest, path: Path, *, fallback: str | None = None) -> FetchReport:
        """See `PayloadExchange`. A stalled fetch moves to the other network (rule 3). The report contains the transfers
        of the network that completed the fetch."""
        by, other = self._all[0], self._all[-1]
        while True:
            fetching = asyncio.ensure_future(by.fetch(manifest, path, fallback=fallback))
            try:
                await self._wait_while_progressing(fetching, by, other)
                if fetching.done():
                    fetched = fetching.result()
                    break
            finally:
                await _cancel(fetching)
            by, other = other, by
        await self.share(manifest, path)
        return fetched

    async def traffic(self) -> Traffic:
        """See `PayloadExchange`. Over HTTPS, payloads are received and nothing else is counted."""
        parts = [await one.traffic() for one in self._all]
        by_peer = sum((Counter(part.received_by_peer) for part in parts), Counter[str]())
        received = sum(part.received for part in parts)
        return msgspec.structs.replace(parts[0], received=received, received_by_peer=dict(by_peer))

    async def _dial(self, route: Route, addresses: list[str]) -> str:
        by = self._https if route == "https" else self._all[0]
        assert by is not None
        peer = await by.dial(addresses)
        self._skipped_until.pop((by, peer), None)
        return peer

    async def _best(self, peer: str) -> AnyPeer | HttpsClient | None:
        for one in self._all:
            if peer in await self._reachable_peers(one):
                return one
        return None

    async def _reachable_peers(self, by: AnyPeer | HttpsClient) -> list[str]:
        now = self._clock()
        self._skipped_until = {key: until for key, until in self._skipped_until.items() if until > now}
        return [peer for peer in await by.peers() if (by, peer) not in self._skipped_until]

    async def _wait_while_progressing(
        self, fetching: asyncio.Future[FetchReport], by: AnyPeer | HttpsClient, other: AnyPeer | HttpsClient
    ) -> None:
        """Wait until a fetch is done, or stalls while the other network is connected."""
        if by is other:
            await asyncio.wait([fetching])
        received, since = -1, self._clock()
        while not fetching.done():
            await asyncio.wait([fetching], timeout=min(PROGRESS_POLL_SECONDS, self._stall))
            if (seen := (await by.traffic()).received) != received:
                received, since = seen, self._clock()
            patience = self._stall if await self._reachable_peers(by) else 0.0
            if not fetching.done() and self._clock() - since >= patience and await self._reachable_peers(other):
                return


class NoLibp2p:
    """The parts that a node without libp2p lacks: it sends no message, shares nothing, has no plan and cannot be called
    (rule 5). HTTPS sends no payloads, so they need no limit."""

    def __init__(self) -> None:
        self.handlers = Handlers()

    async def publish(self, *args: object, **kwargs: object) -> None:
        """Do nothing."""

    share = unshare = follow = limit = release = publish

    async def addresses(self) -> list[str]:
        return []

    async def reserve(self, addresses: Sequence[str]) -> None:
        raise Unreachable("this node does not use libp2p")

    def origin(self, peer: str) -> Origin:
        return Origin(peer, peer)


async def _cancel(fetching: asyncio.Future[FetchReport]) -> None:
    """Cancel a fetch and wait for its end: its partial file is closed before the other network opens it."""
    fetching.cancel()
    await asyncio.wait([fetching])
    if not fetching.cancelled():
        fetching.exception()
