"""A flood of requests from many peers, beside honest requests, on the in-memory network."""

import contextlib
from collections.abc import Awaitable, Callable

import anyio

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.errors import P2PError, Unreachable
from echo2.p2p.peer.peer import Peer
from tests.support.peers import running

FLOOD = 32
"""Connections of the flood. Each may have `PER_PEER` (32) requests at once: 1,024 together."""


async def echo(peer: str, request: bytes) -> bytes:
    return request


async def stuck(peer: str, request: bytes) -> bytes:
    await anyio.sleep(3600)
    return b""


def serving(network: MemoryNetwork, **methods: Callable[[str, bytes], Awaitable[bytes]]) -> Peer:
    server = Peer(network.transport("server"), seed=0)
    for method, handler in methods.items():
        server.serve(method, handler, limit=1 << 16)
    return server


async def flooded(
    network: MemoryNetwork, server: Peer, method: str, ask: bytes, honest: Callable[[list[Peer]], Awaitable[None]]
) -> None:
    """Keep 1,024 requests for `method` open, repeated 5 s after each failure, while `honest` runs with the honest
    peers."""
    flooders = [Peer(network.transport(f"eve{number}"), seed=number) for number in range(FLOOD)]
    nodes = [Peer(network.transport(f"node{number}"), seed=number) for number in range(10)]

    async def without_end(peer: Peer) -> None:
        while True:
            try:
                await peer.request("server", method, ask, timeout=600)
            except P2PError:
                await anyio.sleep(5)

    async with running(server, *flooders, *nodes, connect=False), anyio.create_task_group() as tasks:
        for peer in (*flooders, *nodes):
            await peer.dial(await server.addresses())
        for peer in flooders:
            for _ in range(32):
                tasks.start_soon(without_end, peer)
        await anyio.sleep(1)
        await honest(nodes)
        tasks.cancel_scope.cancel()


async def answered(nodes: list[Peer], method: str, each: int = 20) -> float:
    """Return the share of honest requests that were answered."""
    good = 0
    for number in range(each):
        for node in nodes:
            with contextlib.suppress(Unreachable):
                good += await node.request("server", method, b"%d" % number, timeout=10) == b"%d" % number
    return good / (each * len(nodes))
