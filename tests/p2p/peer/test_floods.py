"""Requests under a flood: one that waits holds nobody up, and no crowd in one class of methods keeps out another."""

import contextlib
from collections.abc import Awaitable, Callable

import anyio
import pytest

from p2p.discovery.messages import ReachableRequest
from p2p.errors import P2PError, Unreachable
from p2p.memory.transport import MemoryNetwork, MemoryTransport
from p2p.peer.peer import Peer
from p2p.wire_types import encode
from tests.support.clock import run_fake
from tests.support.peers import running

FLOOD = 32
"""Connections of the flood; each may have `PER_PEER` requests at once, which makes 1,024."""


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
    """Have 1,024 requests for `method` under way, asked anew 5 s after they end, while the honest ask."""
    crowd = [Peer(network.transport(f"eve{number}"), seed=number) for number in range(FLOOD)]
    nodes = [Peer(network.transport(f"node{number}"), seed=number) for number in range(10)]

    async def without_end(peer: Peer) -> None:
        while True:
            try:
                await peer.request("server", method, ask, timeout=600)
            except P2PError:
                await anyio.sleep(5)

    async with running(server, *crowd, *nodes, connect=False), anyio.create_task_group() as tasks:
        for peer in (*crowd, *nodes):
            await peer.dial(await server.addresses())
        for peer in crowd:
            for _ in range(32):
                tasks.start_soon(without_end, peer)
        await anyio.sleep(1)
        await honest(nodes)
        tasks.cancel_scope.cancel()


async def answered(nodes: list[Peer], method: str, each: int = 20) -> float:
    """The share of honest requests that were answered."""
    good = 0
    for number in range(each):
        for node in nodes:
            with contextlib.suppress(Unreachable):
                good += await node.request("server", method, b"%d" % number, timeout=10) == b"%d" % number
    return good / (each * len(nodes))


def test_a_thousand_asks_to_be_dialled_back_keep_no_honest_request_from_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row c. On 439044d none of these 200 is answered: the asks wait for their turn in all of the 512 slots."""
    monkeypatch.setattr(MemoryTransport, "remote", lambda transport, peer: "/ip4/127.0.0.1/tcp/4310")
    share = 0.0

    async def honest(nodes: list[Peer]) -> None:
        nonlocal share
        share = await answered(nodes, "echo")

    async def main() -> None:
        network = MemoryNetwork(1)
        await flooded(network, serving(network, echo=echo), "reachable", encode(ReachableRequest(ports=[])), honest)

    run_fake(main)
    assert share >= 0.99


@pytest.mark.parametrize("flood", ["lease", "plan", "documents", "verdicts"])
def test_submissions_get_in_while_another_class_is_full(flood: str) -> None:
    """Row c. On 439044d all slots are one: none of these is answered."""
    share = 0.0

    async def honest(nodes: list[Peer]) -> None:
        nonlocal share
        share = await answered(nodes, "submit", each=5)

    async def main() -> None:
        network = MemoryNetwork(1)
        await flooded(network, serving(network, submit=echo, **{flood: stuck}), flood, b"", honest)

    run_fake(main)
    assert share == 1.0
