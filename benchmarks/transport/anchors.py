"""The anchors of `benchmarks.transport`: raw TCP, aiohttp over TLS, stock py-libp2p.

Of aiohttp and py-libp2p there is also a variant with the work that a payload's chunks need (`Store`). py-libp2p is in
an environment of its own (`make stock`), so only the processes that use it import it.
"""

import asyncio
import datetime
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio.to_thread
import trio
from aiohttp import web
from blake3 import blake3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.transport.ends import CHUNK, CHUNK_BYTES, LOOPBACK, SENT, TAKEN, Ends, Say, Taker, chunk

AT_ONCE = 4
"""Concurrent requests of aiohttp, each on a connection of its own."""
PROTOCOL = "/echo2/benchmark/1"
COUNT = 4
"""Length of a request in bytes: it is the number of chunks wanted."""


class Store:
    """The work of p2p/swarm/payload_file.py, written anew for the anchors. A chunk is hashed before it leaves and on
    arrival, and written to a file; in the end the whole file is hashed and made durable. Proofs and the choice of
    chunks are left out, to the anchors' advantage."""

    def __init__(self, folder: Path, chunks: int) -> None:
        self._digests = [blake3(chunk(index)).digest() for index in range(chunks)]
        self._file = os.open(folder / SENT, os.O_RDONLY)
        self._taken = os.open(folder / TAKEN / f"{os.getpid()}", os.O_RDWR | os.O_CREAT)

    def read(self, index: int) -> bytes:
        """Read and hash a chunk to send."""
        data = os.pread(self._file, CHUNK, index * CHUNK)
        assert blake3(data).digest() == self._digests[index]
        return data

    def put(self, index: int, data: bytes) -> None:
        """Hash and store a chunk that has arrived."""
        assert blake3(data).digest() == self._digests[index]
        os.pwrite(self._taken, data, index * CHUNK)

    def finish(self) -> None:
        """Hash the whole file and make it durable: all chunks have arrived."""
        whole = blake3()
        for index in range(len(self._digests)):
            whole.update(os.pread(self._taken, CHUNK, index * CHUNK))
        whole.digest()
        os.fsync(self._taken)

    async def clear(self) -> None:
        """Drop all chunks that have arrived."""
        os.truncate(self._taken, 0)


# -- raw TCP


async def hold_tcp(say: Say, folder: Path, chunks: int) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        while asked := await stream.receive_some(COUNT):
            for _ in range(int.from_bytes(asked, "big")):
                await stream.send_all(CHUNK_BYTES)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host=LOOPBACK))
        say(listener.socket.getsockname()[1])


@asynccontextmanager
async def take_tcp(port: int, folder: Path, chunks: int) -> AsyncIterator[Taker]:
    stream = await trio.open_tcp_stream(LOOPBACK, port)

    async def take(count: int) -> None:
        await stream.send_all(count.to_bytes(COUNT, "big"))
        left = count * CHUNK
        while left:
            left -= len(await stream.receive_some(256 << 10))

    yield Taker(take)


# -- aiohttp over TLS


def certificate(folder: Path) -> ssl.SSLContext:
    """Make a certificate for the loopback, put it into the folder for the client, and return the server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, LOOPBACK)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]), False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(pem)
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def hold_https(say: Say, folder: Path, chunks: int) -> None:
    store = Store(folder, chunks)

    async def one(request: web.Request) -> web.Response:
        return web.Response(body=await asyncio.to_thread(store.read, int(request.match_info["index"])))

    async def many(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = int(request.match_info["count"]) * CHUNK
        await response.prepare(request)
        for _ in range(int(request.match_info["count"])):
            await response.write(CHUNK_BYTES)
        return response

    app = web.Application()
    app.router.add_get("/one/{index}", one)
    app.router.add_get("/many/{count}", many)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, 0, ssl_context=certificate(folder)).start()
    say(runner.addresses[0][1])
    await asyncio.Event().wait()


@asynccontextmanager
async def session(port: int, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(f"https://{LOOPBACK}:{port}", connector=connector) as opened:
        yield opened


@asynccontextmanager
async def take_https(port: int, folder: Path, chunks: int) -> AsyncIterator[Taker]:
    """Take all chunks in one answer, which is fastest with aiohttp."""
    async with session(port, folder) as client:

        async def take(count: int) -> None:
            async with client.get(f"/many/{count}") as response:
                for _ in range(count):
                    assert len(await response.content.readexactly(CHUNK)) == CHUNK

        yield Taker(take)


@asynccontextmanager
async def take_https_stored(port: int, folder: Path, chunks: int) -> AsyncIterator[Taker]:
    """Take chunks by one request each, with `Store`'s work at both ends."""
    store = Store(folder, chunks)
    async with session(port, folder) as client:

        async def some(indices: Iterator[int]) -> None:
            for index in indices:
                async with client.get(f"/one/{index}") as response:
                    await asyncio.to_thread(store.put, index, await response.read())

        async def take(count: int) -> None:
            indices = iter(range(count))
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(some(indices))
            await asyncio.to_thread(store.finish)

        yield Taker(take, store.clear)


# -- stock libp2p


async def hold_stock(say: Say, folder: Path, chunks: int) -> None:
    from libp2p import new_host
    from multiaddr import Multiaddr

    store = Store(folder, chunks)
    host = new_host()

    async def serve(stream: Any) -> None:
        while asked := await stream.read(COUNT):
            for _ in range(int.from_bytes(asked, "big")):
                await stream.write(CHUNK_BYTES)

    async def serve_stored(stream: Any) -> None:
        while asked := await stream.read(COUNT):
            for index in range(int.from_bytes(asked, "big")):
                await stream.write(await anyio.to_thread.run_sync(store.read, index))

    host.set_stream_handler(PROTOCOL, serve)
    host.set_stream_handler(f"{PROTOCOL}/stored", serve_stored)
    async with host.run(listen_addrs=[Multiaddr(f"/ip4/{LOOPBACK}/tcp/0")]):
        say(str(host.get_addrs()[0]))
        await trio.sleep_forever()


@asynccontextmanager
async def stock(address: str, protocol: str) -> AsyncIterator[Any]:
    """Open a stream to the holder, from a new host."""
    from libp2p import new_host
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from multiaddr import Multiaddr

    host = new_host()
    async with host.run(listen_addrs=[]):
        info = info_from_p2p_addr(Multiaddr(address))
        await host.connect(info)
        yield await host.new_stream(info.peer_id, [protocol])


async def chunk_of(stream: Any) -> bytes:
    """Read one chunk; stock libp2p delivers it in several parts."""
    data = bytearray()
    while len(data) < CHUNK:
        data += await stream.read(CHUNK - len(data))
    return bytes(data)


@asynccontextmanager
async def take_stock(address: str, folder: Path, chunks: int) -> AsyncIterator[Taker]:
    async with stock(address, PROTOCOL) as stream:

        async def take(count: int) -> None:
            await stream.write(count.to_bytes(COUNT, "big"))
            for _ in range(count):
                await chunk_of(stream)

        yield Taker(take)


@asynccontextmanager
async def take_stock_stored(address: str, folder: Path, chunks: int) -> AsyncIterator[Taker]:
    """Take chunks with `Store`'s work at both ends."""
    store = Store(folder, chunks)
    async with stock(address, f"{PROTOCOL}/stored") as stream:

        async def take(count: int) -> None:
            await stream.write(count.to_bytes(COUNT, "big"))
            for index in range(count):
                store.put(index, await chunk_of(stream))
            store.finish()

        yield Taker(take, store.clear)


TCP = Ends(hold_tcp, take_tcp, "trio")
HTTPS = Ends(hold_https, take_https, "asyncio")
HTTPS_STORED = Ends(hold_https, take_https_stored, "asyncio")
STOCK = Ends(hold_stock, take_stock, "trio")
STOCK_STORED = Ends(hold_stock, take_stock_stored, "trio")
