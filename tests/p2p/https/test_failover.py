"""Failover from libp2p to HTTPS and back: libp2p is simulated in memory, HTTPS is real."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p import multiaddr
from echo2.p2p.errors import Declined, PeerFault, Unreachable
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.combined_network import PeerAndHttps
from echo2.p2p.https.failover import PENALTY_SECONDS, FailoverNetwork
from echo2.p2p.peer.peer import Peer
from tests.support.https import address_of, running, server_beside, shown
from tests.support.open_files import open_files
from tests.support.peers import payload_file

MB = 1_000_000
DIRECT = "/memory/0/p2p/coordinator"


@dataclass
class World:
    """A coordinator with both networks, and a node. `now`: seconds added to the clock of the node's penalties."""

    memory: MemoryNetwork
    server: PeerAndHttps
    direct: Peer
    https: HttpsClient
    node: FailoverNetwork
    address: str
    now: float = 0.0


async def which(peer: str, data: bytes) -> bytes:
    return b"https" if peer.startswith("https/") else b"direct"


@asynccontextmanager
async def world(*, link: Link | None = None, via=("direct", "relay", "https")) -> AsyncIterator[World]:
    memory = MemoryNetwork(0, patience=0.3, link=link)
    server = server_beside(Peer(memory.transport("coordinator"), seed=0))
    server.peer.handlers.serve("which", which, limit=100)
    direct, https = Peer(memory.transport("node"), seed=1), HttpsClient("node", shown().pin)
    node = FailoverNetwork(direct, https, routes=via, stall=0.3, clock=lambda: loop.time() + new_world.now)
    loop = asyncio.get_running_loop()
    new_world = World(memory, server, direct, https, node, "")
    async with running(server, node):
        new_world.address = await address_of(server)
        yield new_world


async def echoed(node: FailoverNetwork) -> bytes:
    return await node.request("coordinator", "which", b"", timeout=60)


@pytest.mark.parametrize(
    ("address", "route", "url"),
    [
        ("/ip4/192.0.2.1/tcp/4310/p2p/X", "direct", None),
        ("/dns4/a.example/tcp/4310/p2p/X/p2p-circuit/p2p/Y", "relay", None),
        ("/ip4/192.0.2.1/tcp/4311/https/p2p/X", "https", "https://192.0.2.1:4311"),
        ("/ip6/2001:db8::1/tcp/443/https", "https", "https://[2001:db8::1]:443"),
        ("/dns4/a.example/tcp/443/https/p2p/X", "https", "https://a.example:443"),
        ("/dns4//tcp/443/https", "https", None),
        ("/unix/a/tcp/443/https", "https", None),
    ],
)
def test_an_address_implies_its_route(address, route, url):
    assert (multiaddr.route_of(address), multiaddr.address_of(address).https_url) == (route, url)


async def test_the_best_connected_route_is_used():
    async with world() as w:
        assert await w.node.dial([w.address, DIRECT]) == "coordinator"
        assert (await w.node.peers(), await w.node.routes()) == (["coordinator"], {"coordinator": "direct"})
        assert (await echoed(w.node), await w.https.peers()) == (b"direct", [])


async def test_https_is_used_when_no_other_route_works_and_the_failures_are_reported():
    async with world() as w:
        w.memory.partition(["coordinator"], ["node"])
        with pytest.raises(Unreachable, match="no peer answers at"):
            await w.node.dial([DIRECT])
        assert await w.node.dial([DIRECT, w.address]) == "coordinator"
        assert (await echoed(w.node), await w.node.routes()) == (b"https", {"coordinator": "https"})


async def test_a_dead_connection_does_not_hide_a_working_route():
    async with world() as w:
        await w.node.dial([DIRECT])
        w.memory.freeze("coordinator")
        with pytest.raises(Unreachable):
            await echoed(w.node)
        assert "coordinator" in await w.direct.peers()
        assert await w.node.peers() == []
        await w.node.dial([w.address])
        assert await echoed(w.node) == b"https"
        w.now += PENALTY_SECONDS + 1  # forgotten by then, or dialled again before
        w.memory.thaw("coordinator")
        assert await echoed(w.node) == b"direct"


async def test_a_declined_request_does_not_disable_its_route():
    async with world() as w:
        for address in (w.address, DIRECT):
            await w.node.dial([address])
            with pytest.raises(Declined):
                await w.node.request("coordinator", "unknown", b"", timeout=60)
            assert await w.node.peers() == ["coordinator"]


async def test_https_is_disconnected_when_the_better_route_is_back():
    async with world() as w:
        await w.node.dial([w.address])
        assert await echoed(w.node) == b"https"
        await w.node.dial([DIRECT])
        assert (await echoed(w.node), await w.https.peers()) == (b"direct", [])


async def test_a_route_that_the_owner_does_not_permit_is_not_tried():
    async with world(via=("https",)) as w:
        with pytest.raises(Unreachable, match="their kind is not among"):
            await w.node.dial([DIRECT])
        assert await w.node.dial([DIRECT, w.address]) == "coordinator"
        assert await echoed(w.node) == b"https"


async def test_another_https_key_is_reported_as_a_wrong_identity():
    async with world() as w:
        only = FailoverNetwork(None, HttpsClient("node", shown("stranger").pin))
        async with running(only):
            with pytest.raises(PeerFault, match="HTTPS key mismatch"):
                await only.dial([DIRECT, w.address])


@pytest.mark.slow
async def test_a_fetch_that_stalls_on_one_network_continues_on_the_other(tmp_path):
    manifest = payload_file(tmp_path / "a", 4 * MB)
    async with world(link=Link(bandwidth=4 * MB)) as w:
        await w.server.share(manifest, tmp_path / "a")
        await w.node.dial([DIRECT])
        fetch = asyncio.create_task(w.node.fetch(manifest, tmp_path / "b", fallback="coordinator"))
        await arrived(w.direct, MB)
        w.memory.freeze("coordinator")
        await w.https.dial([w.address])
        fetched = await fetch
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        traffic = await w.node.traffic()
        assert traffic.received == manifest.length
        assert 0 < (await w.https.traffic()).received <= manifest.length - MB
        assert [feed.peer for feed in fetched.feeds] == ["coordinator"]
        other = Peer(w.memory.transport("other"), seed=2)
        async with running(other), asyncio.timeout(60):  # the payload is passed on to others
            await other.dial(["/memory/0/p2p/node"])
            await other.fetch(manifest, tmp_path / "c")
            assert (await other.traffic()).received_by_peer == {"node": manifest.length}


@pytest.mark.slow
async def test_a_fetch_continues_over_libp2p_when_https_ends(tmp_path):
    manifest = payload_file(tmp_path / "a", 32 * MB)
    async with world() as w:
        await w.server.share(manifest, tmp_path / "a")
        await w.node.dial([w.address])
        fetch = asyncio.create_task(w.node.fetch(manifest, tmp_path / "b", fallback="coordinator"))
        await arrived(w.https, 1)
        await w.https.disconnect()
        w.https._origin = "https://127.0.0.1:1"
        await w.direct.dial([DIRECT])
        await fetch
        assert (await w.direct.traffic()).received > 0
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


async def test_a_cancelled_fetch_closes_its_partial_file(tmp_path):
    def held() -> bool:
        return any(tmp_path in path.parents for path in open_files())

    manifest = payload_file(tmp_path / "a", MB)
    async with world() as w:
        fetch = asyncio.create_task(w.node.fetch(manifest, tmp_path / "b"))
        async with asyncio.timeout(60):
            while sys.platform == "linux" and not held():  # noqa: ASYNC110 - what is waited for raises no event
                await asyncio.sleep(0)
        fetch.cancel()
        await asyncio.wait([fetch])
        assert fetch.cancelled()
        async with asyncio.timeout(60):
            while held():  # noqa: ASYNC110 - a thread that was opening the file closes it
                await asyncio.sleep(0)


async def arrived(network, nbytes: int) -> None:
    async with asyncio.timeout(60):
        while (await network.traffic()).received < nbytes:  # noqa: ASYNC110 - what is waited for raises no event
            await asyncio.sleep(0)
