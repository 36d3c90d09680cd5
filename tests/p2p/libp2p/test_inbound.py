"""Inbound connections over real sockets: new peers connect after any number of closed ones, and beside silent ones."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import trio

from benchmarks.attacks.tcp_proxy import proxying
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import PayloadRates, ThreadedPeer
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.relay_quota import RelayLimits
from echo2.p2p.limits.subnets import PeerLimits
from tests.support.libp2p_peers import echo, new_peer, on_trio, running

PLACES, SILENT = 16, 300
"""Places of upstream in the first test; silent connections in the second, more than a host has places."""


async def visit(to: ThreadedPeer) -> bool:
    """Connect a new peer to a host and disconnect it; return whether it connected."""
    node = ThreadedPeer(generate_key(), [])
    async with running(node):
        with contextlib.suppress(Unreachable):
            async with asyncio.timeout(5):
                await node.dial(await to.addresses())
                return True
    return False


@contextlib.asynccontextmanager
async def silent(port: int, count: int, source: str) -> AsyncIterator[None]:
    """Open `count` connections from one address that never send a byte."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind((source, 0))
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
        yield


HOSTS: dict[str, dict[str, Any]] = {
    "a coordinator's host": {"relay": RelayLimits(), "rates": PayloadRates(uplink=1e9)},
    "a node's host": {"patience": 20.0},
}


@pytest.mark.parametrize("options", HOSTS.values(), ids=HOSTS)
@pytest.mark.slow
async def test_new_peers_connect_after_three_times_as_many_connections_as_places(
    options: dict[str, Any],
) -> None:
    """On 439044d 15 of these 48 connect to the host, and none ever after."""
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
    """On 439044d each silent connection occupies a place for more than ten seconds: none of the new peers connects."""
    coordinator = new_peer()
    async with running(coordinator):
        (address,) = await coordinator.addresses()
        async with silent(int(address.split("/")[4]), SILENT, "127.0.0.66"):
            reached = [await visit(coordinator) for _ in range(3)]
    assert reached == [True] * 3


async def test_a_host_accepts_connections_after_as_many_as_may_be_open_were_closed() -> None:
    """A fault of py-libp2p 0.8 (docs/libp2p-faults.md): on 439044d the 257th connection ever is refused; here
    it would be the 5th, since the bound is set to 4."""
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


@pytest.mark.parametrize("version", [1, 2])
async def test_behind_a_trusted_proxy_a_peer_comes_from_the_address_that_the_header_names(version: int) -> None:
    parties = Parties(proxies=["127.0.0.1"])
    coordinator, node = new_peer(limits=PeerLimits(parties=parties)), ThreadedPeer(generate_key(), [])
    coordinator.serve("echo", echo, limit=10)
    async with running(coordinator, chained=True), running(node):
        (address,) = await coordinator.addresses()
        async with proxying(int(address.split("/")[4]), version, ("8.8.8.8", 5000)) as port:
            await node.dial([f"/ip4/127.0.0.1/tcp/{port}/p2p/{coordinator.peer_id}"])
            assert await node.request(coordinator.peer_id, "echo", b"x", timeout=60)
            assert coordinator.origin(node.peer_id).party == "8.8.8.0/24"
    assert parties.accepted == {True: 1}


async def refusals(transport) -> dict[str, int]:
    return transport.refusals()


@pytest.mark.parametrize(
    ("proxies", "version"),
    {"a trusted proxy sends none": (["127.0.0.1"], 0), "another one sends it": ([], 2)}.values(),
)
async def test_a_missing_header_and_one_from_elsewhere_are_refused_and_counted(
    proxies: list[str], version: int
) -> None:
    coordinator, node = new_peer(limits=PeerLimits(parties=Parties(proxies=proxies))), ThreadedPeer(generate_key(), [])
    async with running(coordinator), running(node):
        (address,) = await coordinator.addresses()
        async with proxying(int(address.split("/")[4]), version, ("8.8.8.8", 5000)) as port:
            with pytest.raises(Unreachable):
                await node.dial([f"/ip4/127.0.0.1/tcp/{port}/p2p/{coordinator.peer_id}"])
        assert set(await on_trio(coordinator, refusals)) == {"proxy"}
        assert await visit(coordinator) is (not proxies), "who comes without a proxy"
