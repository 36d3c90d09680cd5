"""A coordinator's HTTPS server on loopback with real TLS, and its clients, for tests."""

import asyncio
import atexit
import contextlib
import datetime
import functools
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.https import certificate
from echo2.p2p.https.certificate import server_context
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.https.combined_network import PeerAndHttps
from echo2.p2p.https.server import HttpsServer
from echo2.p2p.network import AnyPeer, Host, Uplink
from echo2.p2p.peer.peer import Peer

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


@dataclass(frozen=True)
class Shown:
    """A server's identity: a key file and its certificate. `pin`: the pin of the certificate in an invite."""

    key: Path
    certificate: Path
    pin: bytes


@functools.cache
def shown(name: str = "coordinator") -> Shown:
    """Return the identity of this name, created once per test process."""
    folder = Path(tempfile.mkdtemp(prefix="echo2-https-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
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
    run: bytes = b"",
) -> PeerAndHttps:
    """Combine `peer` with an HTTPS server that has `identity`. `uplink`, `run`: see `HttpsServer`."""
    one = identity or shown()
    context = server_context(one.certificate, one.key)
    return PeerAndHttps(
        peer, HttpsServer(peer.peer_id, peer.handlers, [listen], context, limits, uplink=uplink, run=run)
    )


@asynccontextmanager
async def running(*networks: Host) -> AsyncIterator[None]:
    """Run networks during the `with` block."""
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
    listen: str = LOOPBACK,
    *,
    limits: HttpsLimits | None = None,
    identity: Shown | None = None,
    run: bytes = b"",
    **methods: object,
) -> AsyncIterator[PeerAndHttps]:
    """Run a server beside an in-memory peer. `methods`: name=handler, for requests of at most 1000 bytes."""
    server = server_beside(
        Peer(MemoryNetwork(0).transport("coordinator"), seed=0), listen, limits=limits, identity=identity, run=run
    )
    for name, handler in methods.items():
        server.peer.handlers.serve(name, handler, limit=1000)
    async with running(server):
        yield server


async def address_of(server: PeerAndHttps) -> str:
    return next(one for one in await server.addresses() if "https" in one) + f"/p2p/{server.peer.peer_id}"


@asynccontextmanager
async def client_of(server: PeerAndHttps, *, patience: float = 20.0) -> AsyncIterator[HttpsClient]:
    """Run a client that has dialled the server."""
    client = HttpsClient("node", shown().pin, patience=patience)
    async with running(client):
        assert await client.dial([await address_of(server)]) == "coordinator"
        yield client


async def echo(peer: str, data: bytes) -> bytes:
    """Answer a request with the kind of the client's name, ":" and the request."""
    return peer.partition("/")[0].encode() + b":" + data


@asynccontextmanager
async def raw(server: PeerAndHttps) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a TLS connection to a server, without sending a request."""
    port = int((await address_of(server)).split("/")[4])
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` is True."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for raises no event
            await asyncio.sleep(0)


async def response_to(server: PeerAndHttps, request: bytes) -> bytes:
    """Send raw bytes; return all that comes back until the server closes the connection."""
    async with raw(server) as (reader, writer):
        writer.write(request)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                return await reader.read()
        return b""
