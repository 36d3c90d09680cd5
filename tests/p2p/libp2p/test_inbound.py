"""Real connections: a host hears newcomers however many came and went, and however many say nothing."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import trio

from p2p.errors import Unreachable
from p2p.identity import generate_key
from p2p.libp2p.threaded_network import ThreadedPeer
from p2p.limits.relay_quota import RelayLimits
from tests.support.libp2p_peers import new_peer, on_trio, running

PLACES, SILENT = 16, 300
"""Places that upstream has in the first test; connections that say nothing, more than a host has places."""


async def visit(to: ThreadedPeer) -> bool:
    """Whether a newcomer reaches a host; it leaves again."""
    node = ThreadedPeer(generate_key(), [])
    async with running(node):
        with contextlib.suppress(Unreachable):
            async with asyncio.timeout(5):
                await node.dial(await to.addresses())
                return True
    return False


@contextlib.asynccontextmanager
async def silent(port: int, count: int, source: str) -> AsyncIterator[None]:
    """So many connections from one address that never say a word."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind((source, 0))
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
        yield


HOSTS: dict[str, dict[str, Any]] = {
    "a coordinator's host": {"relay": RelayLimits(), "uplink": 1e9},
    "a node's host": {"patience": 20.0},
}


@pytest.mark.parametrize("options", HOSTS.values(), ids=HOSTS)
async def test_new_peers_connect_after_three_times_as_many_connections_as_places(
    options: dict[str, Any],
) -> None:
    """Row a. On 439044d 15 of these 48 reach a host, and none ever after."""
    coordinator, reached = new_peer(**options), 0

    async def bound(transport) -> None:
        transport.host.get_network()._inbound_limiter = trio.CapacityLimiter(PLACES)
        await trio.lowlevel.checkpoint()

    async with running(coordinator):
        await on_trio(coordinator, bound)
        await visit(coordinator)
        before = psutil.Process().num_fds()
        for _ in range(3 * PLACES):
            reached += await visit(coordinator)
        async with asyncio.timeout(30):
            while await coordinator.peers():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert psutil.Process().num_fds() <= before
    assert reached == 3 * PLACES


async def test_silent_connections_do_not_exclude_new_peers() -> None:
    """Row b. On 439044d each holds a place for ten seconds and more: no newcomer of these gets in."""
    coordinator = new_peer()
    async with running(coordinator):
        (address,) = await coordinator.addresses()
        async with silent(int(address.split("/")[4]), SILENT, "127.0.0.66"):
            reached = [await visit(coordinator) for _ in range(3)]
    assert reached == [True] * 3


async def test_a_host_accepts_connections_after_as_many_as_may_be_open_were_closed() -> None:
    """Row A3, and a twelfth fault of py-libp2p 0.8: on 439044d the 257th connection ever is turned away, here the 5th
    (its bound is put at 4)."""
    coordinator = new_peer()

    async def bound(transport) -> None:
        transport.host.get_network()._inbound_limiter = trio.CapacityLimiter(4)
        await trio.lowlevel.checkpoint()

    reached = 0
    async with running(coordinator):
        await on_trio(coordinator, bound)
        for _ in range(6):
            node = ThreadedPeer(generate_key(), [])
            async with running(node):
                with contextlib.suppress(Unreachable):
                    await node.dial(await coordinator.addresses())
                    reached += 1
            async with asyncio.timeout(30):
                while await coordinator.peers():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
    assert reached == 6
