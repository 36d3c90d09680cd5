"""Peers over real libp2p on loopback, for tests: build, run, connect, and reach into their trio threads."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
MB = 1_000_000
T = TypeVar("T")


def new_peer(*, listen: str = LOOPBACK, **options: Any) -> ThreadedPeer:
    """Return a peer with a new key. `options`: of `ThreadedPeer`."""
    return ThreadedPeer(generate_key(), [listen], **options)


@asynccontextmanager
async def running(*peers: ThreadedPeer, chained: bool = False) -> AsyncIterator[None]:
    """Run peers; connect each with all others, or (`chained`) with its predecessor only."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(peer.run()) for peer in peers]
        try:
            for number, peer in enumerate(peers):
                await peer.ready()
                for other in peers[number - 1 : number] if chained and number else peers[:number]:
                    assert await peer.dial(await other.addresses()) == other.peer_id
                    await until_connected(other, peer)
            yield
        finally:
            for task in tasks:
                task.cancel()


async def until_connected(one: ThreadedPeer, other: ThreadedPeer) -> None:
    """Wait until `one` lists `other`: the dialled side learns of a connection a little later than the dialling one."""
    async with asyncio.timeout(60):
        while other.peer_id not in await one.peers():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def echo(peer: str, request: bytes) -> bytes:
    """Answer a request with the requester's peer id, ":" and the request."""
    return peer.encode() + b":" + request


async def on_trio(peer: ThreadedPeer, function: Callable[[Any], Awaitable[T]]) -> T:
    """Run `function(transport)` on the trio thread of a peer; return its result."""
    thread, own = peer.on_trio()
    return await thread.call(function, own._transport)
