"""Our candidates of `benchmarks.transport`: frames on a stream, and a payload fetched as a node fetches it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from benchmarks.transport.anchors import COUNT, PROTOCOL
from benchmarks.transport.ends import CHUNK, CHUNK_BYTES, LOOPBACK, SENT, TAKEN, Ends, Say, Taker
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.manifest import digest, scan
from echo2.p2p.transport import Stream

LISTEN = [f"/ip4/{LOOPBACK}/tcp/0"]
PATIENCE = 3600.0
"""Seconds for which a stream may be idle while other candidates run."""


async def hold_stream(say: Say, folder: Path, chunks: int) -> None:
    """Send chunks from memory on a libp2p stream of ours."""
    transport = LibP2PTransport(generate_key(), LISTEN, patience=PATIENCE)

    async def serve(stream: Stream) -> None:
        while asked := await stream.receive(COUNT):
            for _ in range(int.from_bytes(asked, "big")):
                await stream.send(CHUNK_BYTES)

    transport.handle(PROTOCOL, serve)
    await transport.run(lambda: say(transport.addresses()))


@asynccontextmanager
async def take_stream(addresses: list[str], folder: Path, chunks: int) -> AsyncIterator[Taker]:
    transport = LibP2PTransport(generate_key(), [], patience=PATIENCE)
    async with trio.open_nursery() as nursery:
        ready = trio.Event()
        nursery.start_soon(transport.run, ready.set)
        await ready.wait()
        stream = await transport.open(await transport.dial(addresses), PROTOCOL)

        async def take(count: int) -> None:
            await stream.send(count.to_bytes(COUNT, "big"))
            for _ in range(count):
                assert len(await stream.receive(CHUNK) or b"") == CHUNK

        yield Taker(take)
        nursery.cancel_scope.cancel()


def manifest_of(path: Path, size: int) -> Manifest:
    """Return a manifest as `p2p.swarm.manifest.manifest_of` does, but with chunks of `size` bytes, whatever the file's
    length."""
    with path.open("rb") as file:
        leaves, whole, length = scan(file, size)
    return Manifest(hash=whole, length=length, chunk_size=size, chunk_root=merkle.Tree.of(leaves, digest).root)


async def hold_fetch(say: Say, folder: Path, chunks: int) -> None:
    """Share the file as a payload."""
    path = folder / SENT
    peer = ThreadedPeer(generate_key(), LISTEN)
    async with asyncio.TaskGroup() as group:
        group.create_task(peer.run())
        await peer.ready()
        manifest = manifest_of(path, CHUNK)
        await peer.share(manifest, path)
        say((await peer.addresses(), manifest))


@asynccontextmanager
async def take_fetch(given: tuple[list[str], Manifest], folder: Path, chunks: int) -> AsyncIterator[Taker]:
    addresses, manifest = given
    path = folder / TAKEN / "fetched"
    peer = ThreadedPeer(generate_key(), [])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(peer.run())
        await peer.ready()
        await peer.dial(addresses)

        async def take(count: int) -> None:
            await peer.fetch(manifest, path)

        async def clear() -> None:
            await peer.unshare(manifest.hash)
            path.unlink()

        yield Taker(take, clear)
        running.cancel()


STREAM = Ends(hold_stream, take_stream, "trio")
FETCH = Ends(hold_fetch, take_fetch, "asyncio")
