"""A coordinator's HTTPS on the loopback, with real TLS: keys and certificates made once, servers, clients."""

import asyncio
import datetime
import functools
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from p2p.https import certificate
from p2p.https.certificate import server_context
from p2p.https.client import HttpsClient
from p2p.https.client_limits import HttpsLimits
from p2p.https.combined_network import PeerAndHttps
from p2p.https.server import HttpsServer
from p2p.memory.transport import MemoryNetwork
from p2p.network import AnyPeer, Host, Uplink
from p2p.peer.peer import Peer

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


@dataclass(frozen=True)
class Shown:
    """A key, and a certificate under it. `pin`: what an invite says of it."""

    key: Path
    certificate: Path
    pin: bytes


@functools.cache
def shown(name: str = "coordinator") -> Shown:
    """One identity a name, for the whole test process."""
    folder = Path(tempfile.mkdtemp(prefix="echo2-https-"))
    key, pem = folder / "https.pem", folder / "https.crt"
    certificate.make_key(key)
    pem.write_bytes(certificate.certificate(key, name, NOW))
    return Shown(key, pem, certificate.pin_of(pem.read_bytes()))


def server_beside(
    peer: AnyPeer,
    listen: str = LOOPBACK,
    *,
    limits: HttpsLimits | None = None,
    identity: Shown | None = None,
    uplink: Uplink | None = None,
) -> PeerAndHttps:
    """`peer`, and beside it a server that shows `identity`. `uplink`: see `HttpsServer`."""
    one = identity or shown()
    context = server_context(one.certificate, one.key)
    return PeerAndHttps(peer, HttpsServer(peer.peer_id, peer.handlers, [listen], context, limits, uplink=uplink))


@asynccontextmanager
async def running(*networks: Host) -> AsyncIterator[None]:
    """Run these until the block ends."""
    tasks = [asyncio.create_task(network.run()) for network in networks]
    try:
        for network in networks:
            await network.ready()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


@asynccontextmanager
async def served(
    listen: str = LOOPBACK, *, limits: HttpsLimits | None = None, identity: Shown | None = None, **methods: object
) -> AsyncIterator[PeerAndHttps]:
    """A running server whose other network is in memory. `methods`: name=handler, requests of 1000 bytes at most."""
    server = server_beside(
        Peer(MemoryNetwork(0).transport("coordinator"), seed=0), listen, limits=limits, identity=identity
    )
    for name, handler in methods.items():
        server.peer.handlers.serve(name, handler, limit=1000)
    async with running(server):
        yield server


async def address_of(server: PeerAndHttps) -> str:
    """Where a client reaches it."""
    return next(one for one in await server.addresses() if "https" in one) + f"/p2p/{server.peer.peer_id}"


@asynccontextmanager
async def client_of(server: PeerAndHttps, *, patience: float = 20.0) -> AsyncIterator[HttpsClient]:
    """A client that has dialled."""
    client = HttpsClient("node", shown().pin, patience=patience)
    async with running(client):
        assert await client.dial([await address_of(server)]) == "coordinator"
        yield client
