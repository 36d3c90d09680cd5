"""The two ends of each candidate of `benchmarks.transport`, each a process of its own.

A holder has CHUNKS of 1 MiB in memory (the candidate `fetch` in a file) and says where it listens; a taker takes all of
them and says how long that took. Both say how much CPU time it cost them.
"""

import asyncio
import datetime
import ipaddress
import os
import ssl
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import trio
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.peer.peerinfo import info_from_p2p_addr
from multiaddr import Multiaddr

from p2p.chunks import manifest_of
from p2p.identity import generate_key
from p2p.libp2p import LibP2PTransport
from p2p.threaded import ThreadedPeer
from p2p.transport import Stream

CHUNK = 1 << 20
WARM = 16
"""Chunks that are taken before the clock starts."""
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
PROTOCOL = "/echo2/benchmark/1"
Chunk = bytes(Random(0).randbytes(CHUNK))
Say = Callable[[object], None]
Hold = Callable[[Say, Path, int], Awaitable[None]]
Take = Callable[[Any, Path, int], Awaitable[float]]


def holder(pipe: Connection, name: str, folder: Path, chunks: int) -> None:
    """The process that sends: says where it listens; then its CPU seconds so far, each time it is asked."""

    def report() -> None:
        while pipe.recv():
            pipe.send(time.process_time())
        os._exit(0)

    def listening(where: object) -> None:
        pipe.send(where)
        threading.Thread(target=report, daemon=True).start()

    hold, _, asynchronous = CANDIDATES[name]
    asynchronous(hold, listening, folder, chunks)


def taker(pipe: Connection, name: str, where: object, folder: Path, chunks: int) -> None:
    """The process that receives: says the seconds by the clock and of CPU that it took."""
    _, take, asynchronous = CANDIDATES[name]
    asynchronous(take, (where, pipe), folder, chunks)


def under_trio(end: Callable[..., Awaitable[Any]], *args: Any) -> None:
    trio.run(end, *args)


def under_asyncio(end: Callable[..., Any], *args: Any) -> None:
    asyncio.run(end(*args))


class Stopwatch:
    """Around what is measured in the taker; the holder's CPU time is asked for at the same two moments."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __enter__(self) -> None:
        self._pipe.send("start")
        self._pipe.recv()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self._pipe.send((time.perf_counter() - self._wall, time.process_time() - self._cpu))


# -- raw TCP


async def hold_tcp(say: Say, folder: Path, chunks: int) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        while asked := await stream.receive_some(2):
            for _ in range(int.from_bytes(asked, "big")):
                await stream.send_all(Chunk)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        say(listener.socket.getsockname()[1])


async def take_tcp(given: tuple[int, Connection], folder: Path, chunks: int) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", given[0])

    async def take(count: int) -> None:
        await stream.send_all(count.to_bytes(2, "big"))
        left = count * CHUNK
        while left:
            left -= len(await stream.receive_some(256 << 10))

    await take(WARM)
    with Stopwatch(given[1]):
        await take(chunks)


# -- aiohttp over TLS


def certificate(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(pem)
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def hold_https(say: Say, folder: Path, chunks: int) -> None:
    async def one(request: web.Request) -> web.Response:
        return web.Response(body=Chunk)

    async def many(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = int(request.match_info["count"]) * CHUNK
        await response.prepare(request)
        for _ in range(int(request.match_info["count"])):
            await response.write(Chunk)
        return response

    app = web.Application()
    app.router.add_get("/one", one)
    app.router.add_get("/many/{count}", many)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate(folder))
    await site.start()
    say(runner.addresses[0][1])
    await asyncio.Event().wait()


@asynccontextmanager
async def session(port: int, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    connector = aiohttp.TCPConnector(ssl=context, limit=1)
    async with aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=connector) as made:
        yield made


async def take_https(given: tuple[int, Connection], folder: Path, chunks: int) -> None:
    """A request a chunk."""
    async with session(given[0], folder) as client:

        async def take(count: int) -> None:
            for _ in range(count):
                async with client.get("/one") as response:
                    assert len(await response.read()) == CHUNK

        await take(WARM)
        with Stopwatch(given[1]):
            await take(chunks)


async def take_https_stream(given: tuple[int, Connection], folder: Path, chunks: int) -> None:
    """All chunks in one answer."""
    async with session(given[0], folder) as client:

        async def take(count: int) -> None:
            async with client.get(f"/many/{count}") as response:
                for _ in range(count):
                    await response.content.readexactly(CHUNK)

        await take(WARM)
        with Stopwatch(given[1]):
            await take(chunks)


# -- stock libp2p


async def hold_stock(say: Say, folder: Path, chunks: int) -> None:
    host = new_host()

    async def serve(stream: Any) -> None:
        while asked := await stream.read(2):
            for _ in range(int.from_bytes(asked, "big")):
                await stream.write(Chunk)

    host.set_stream_handler(TProtocol(PROTOCOL), serve)
    async with host.run(listen_addrs=[Multiaddr(LOOPBACK)]):
        say(str(host.get_addrs()[0]))
        await trio.sleep_forever()


async def take_stock(given: tuple[str, Connection], folder: Path, chunks: int) -> None:
    host = new_host()
    async with host.run(listen_addrs=[]):
        info = info_from_p2p_addr(Multiaddr(given[0]))
        await host.connect(info)
        stream = await host.new_stream(info.peer_id, [TProtocol(PROTOCOL)])

        async def take(count: int) -> None:
            await stream.write(count.to_bytes(2, "big"))
            left = count * CHUNK
            while left:
                left -= len(await stream.read(min(left, CHUNK)))

        await take(WARM)
        with Stopwatch(given[1]):
            await take(chunks)


# -- ours: frames on a stream of the transport


async def hold_stream(say: Say, folder: Path, chunks: int) -> None:
    transport = LibP2PTransport(generate_key(), [LOOPBACK])

    async def serve(stream: Stream) -> None:
        while asked := await stream.receive(2):
            for _ in range(int.from_bytes(asked, "big")):
                await stream.send(Chunk)

    transport.handle(PROTOCOL, serve)
    await transport.run(lambda: say(transport.addresses()))


async def take_stream(given: tuple[list[str], Connection], folder: Path, chunks: int) -> None:
    transport = LibP2PTransport(generate_key(), [])
    async with trio.open_nursery() as nursery:
        ready = trio.Event()
        nursery.start_soon(transport.run, ready.set)
        await ready.wait()
        stream = await transport.open(await transport.dial(given[0]), PROTOCOL)

        async def take(count: int) -> None:
            await stream.send(count.to_bytes(2, "big"))
            for _ in range(count):
                frame = await stream.receive(CHUNK)
                assert len(frame or b"") == CHUNK

        await take(WARM)
        with Stopwatch(given[1]):
            await take(chunks)
        nursery.cancel_scope.cancel()


# -- ours: a payload, chunk by chunk, proven and stored


def payload(folder: Path, name: str, chunks: int) -> Path:
    path = folder / name
    with path.open("wb") as file:
        for number in range(chunks):
            file.write(number.to_bytes(8, "big") + Chunk[8:])
    return path


async def hold_fetch(say: Say, folder: Path, chunks: int) -> None:
    peer = ThreadedPeer(generate_key(), [LOOPBACK])
    async with asyncio.TaskGroup() as group:
        group.create_task(peer.run())
        await peer.ready()
        manifests = []
        for count in (WARM, chunks):
            path = payload(folder, f"held-{count}", count)
            manifests.append(manifest_of(path))
            await peer.share(manifests[-1], path)
        say((await peer.addresses(), manifests))


async def take_fetch(given: tuple[Any, Connection], folder: Path, chunks: int) -> None:
    addresses, (warm, whole) = given[0]
    peer = ThreadedPeer(generate_key(), [])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(peer.run())
        await peer.ready()
        await peer.dial(addresses)
        await peer.fetch(warm, folder / "warm")
        with Stopwatch(given[1]):
            await peer.fetch(whole, folder / "whole")
        running.cancel()


CANDIDATES: dict[str, tuple[Any, Any, Any]] = {
    "raw TCP": (hold_tcp, take_tcp, under_trio),
    "aiohttp over TLS, a request a chunk": (hold_https, take_https, under_asyncio),
    "aiohttp over TLS, one answer": (hold_https, take_https_stream, under_asyncio),
    "stock py-libp2p": (hold_stock, take_stock, under_trio),
    "stream": (hold_stream, take_stream, under_trio),
    "fetch": (hold_fetch, take_fetch, under_asyncio),
}


def measure(name: str, chunks: int) -> tuple[float, float, float]:
    """(seconds by the clock, CPU seconds of the holder, of the taker) for `chunks` chunks of one candidate."""
    import multiprocessing

    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as made:
        folder = Path(made)
        own, theirs = fresh.Pipe()
        sending = fresh.Process(target=holder, args=(theirs, name, folder, chunks))
        sending.start()
        theirs.close()
        where = own.recv()
        mine, its = fresh.Pipe()
        receiving = fresh.Process(target=taker, args=(its, name, where, folder, chunks))
        receiving.start()
        its.close()
        mine.recv()
        own.send(True)
        before = own.recv()
        mine.send("go")
        wall, taken = mine.recv()
        own.send(True)
        held = own.recv() - before
        receiving.join()
        own.send(False)
        sending.join()
    return wall, held, taken
