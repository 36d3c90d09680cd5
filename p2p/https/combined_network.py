"""A coordinator's network over libp2p and HTTPS: one `Network` in front of both.

Rules
1. Handlers, published messages and shared payloads are served over both. Addresses, places, origins and traffic cover
   both. All other methods use the libp2p peer alone.
2. If one of the two ends, both end.
"""

import asyncio
from pathlib import Path

import msgspec

from echo2.p2p.guard import one_error
from echo2.p2p.https.server import HttpsServer
from echo2.p2p.limits.origin import Origin
from echo2.p2p.multiaddr import OVER_HTTPS
from echo2.p2p.network import AnyPeer, Network, Traffic
from echo2.p2p.payload_manifest import Manifest


class PeerAndHttps:
    """The parts of `p2p.network` over a libp2p peer and an HTTPS server. `https`: serves the handlers of `peer`."""

    def __init__(self, peer: AnyPeer, https: HttpsServer) -> None:
        self.peer, self.https = peer, https
        self.subscribe, self.reserve, self.release = peer.subscribe, peer.reserve, peer.release
        self.fetch, self.follow, self.limit = peer.fetch, peer.follow, peer.limit

    @property
    def network(self) -> Network:
        """The peer's parts of the network, and this object for those that include HTTPS."""
        return Network(self, self.peer.handlers, self.peer, self.peer, self, self, self)

    async def run(self) -> None:
        with one_error():
            async with asyncio.TaskGroup() as group:
                group.create_task(self.peer.run())
                group.create_task(self.https.run())

    async def ready(self) -> None:
        await self.https.ready()
        await self.peer.ready()

    async def addresses(self) -> list[str]:
        return [*await self.peer.addresses(), *self.https.addresses()]

    def origin(self, peer: str) -> Origin:
        return (self.https if peer.startswith(OVER_HTTPS) else self.peer).origin(peer)

    async def publish(self, topic: str, data: bytes) -> None:
        self.https.publish(topic, data)
        await self.peer.publish(topic, data)

    async def share(self, manifest: Manifest, path: Path) -> None:
        await self.peer.share(manifest, path)
        await self.https.share(manifest, path)

    async def unshare(self, payload_hash: bytes) -> None:
        self.https.unshare(payload_hash)
        await self.peer.unshare(payload_hash)

    async def traffic(self) -> Traffic:
        libp2p = await self.peer.traffic()
        refused = libp2p.refused | self.https.listener.refusals.counts()
        return msgspec.structs.replace(libp2p, sent=libp2p.sent + self.https.sent, refused=refused)
