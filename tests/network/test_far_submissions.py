"""A node over real libp2p, and one over real HTTPS, whose coordinator is 150 ms of round trip away."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from benchmarks.harness.delay_proxy import delay_proxy
from benchmarks.memory_network.transport import MemoryNetwork
from echo2.node.config import NodeConfig
from echo2.node.daemon import NodeDaemon
from echo2.node.run_context import RunContext
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.combined_network import PeerAndHttps
from echo2.p2p.https.failover import FailoverNetwork
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.multiaddr import address_of
from echo2.p2p.network import AnyPeer, Network
from echo2.p2p.peer.peer import Peer
from tests.support.fake_coordinator import START, FakeCoordinator, InProcessEngine, Node, until
from tests.support.https import server_beside, shown
from tests.support.libp2p_peers import LOOPBACK
from tests.support.swarm import working

ROUND_TRIP = 0.15
GROUPS, STRETCHES = 100, 3
LEAST = 20
"""Groups per second: one at a time would be less than 7. The bar is 30 on a machine that does nothing else, and a load
of 10 on two cores leaves 29 over HTTPS."""
KEY = generate_key()


def milliseconds() -> int:
    """Return the time by the machine's clock, in the year of the Root."""
    return START + int(time.monotonic() * 1000)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir()
    return tmp_path / "node"


async def rate_of(coordinator: FakeCoordinator, home: Path, address: str, network: Network, own: str) -> float:
    """Return the groups per second that a node hands in to a coordinator at a far address, once it is at work: of the
    best of three stretches, as other work on the machine slows some. `network`: network of the node. `own`: its peer
    id."""
    await coordinator.publish(0, addresses=[address])
    invite = msgspec.structs.replace(coordinator.invite(address), https_key=shown().pin)
    context = RunContext.open(home, invite, KEY, local=milliseconds, seed=7)
    engine = InProcessEngine(seconds=1.0, places=64)
    daemon = NodeDaemon(NodeConfig(home=home), context, network, lambda: engine)
    async with working(Node(daemon, engine, own, home)):
        await until(lambda: len(coordinator.submitted) >= 64)
        rate = max([await stretch(coordinator) for _ in range(STRETCHES)])
    print(f"{rate:.1f} groups per second at {1000 * ROUND_TRIP:.0f} ms of round trip")
    return rate


async def stretch(coordinator: FakeCoordinator) -> float:
    """Return the groups per second over the next `GROUPS`."""
    began, before = time.monotonic(), len(coordinator.submitted)
    await until(lambda: len(coordinator.submitted) >= before + GROUPS)
    return (len(coordinator.submitted) - before) / (time.monotonic() - began)


@pytest.mark.slow
async def test_groups_are_handed_in_far_quicker_than_one_per_round_trip(tmp_path: Path, home: Path) -> None:
    coordinator = FakeCoordinator(tmp_path / "coordinator", now=milliseconds)
    peer = ThreadedPeer(coordinator.identity, [LOOPBACK])
    async with coordinator.serving_as(peer):
        port = address_of((await peer.addresses())[0]).port
        async with delay_proxy(port, ROUND_TRIP / 2) as far:
            own = ThreadedPeer(KEY, [LOOPBACK])
            address = f"/ip4/127.0.0.1/tcp/{far}/p2p/{coordinator.peer_id}"
            rate = await rate_of(coordinator, home, address, Network.of(own), own.peer_id)
    assert rate >= LEAST


class ServingHttps(PeerAndHttps):
    """A coordinator's network whose handlers and payloads are those of its peer."""

    def serve(self, method: str, handler: Callable[[str, bytes], Awaitable[bytes]], *, limit: int) -> None:
        """See `Handlers`."""
        self.peer.handlers.serve(method, handler, limit=limit)


@pytest.mark.slow
async def test_groups_are_handed_in_over_https_far_quicker_than_one_per_round_trip(tmp_path: Path, home: Path) -> None:
    coordinator = FakeCoordinator(tmp_path / "coordinator", now=milliseconds)
    beside = server_beside(Peer(MemoryNetwork(0).transport(coordinator.peer_id), seed=0))
    server = ServingHttps(beside.peer, beside.https)
    async with coordinator.serving_as(cast(AnyPeer, server)):
        port = address_of(server.https.addresses()[0]).port
        async with delay_proxy(port, ROUND_TRIP / 2) as far:
            own = peer_id(public_bytes(KEY))
            address = f"/ip4/127.0.0.1/tcp/{far}/https/p2p/{coordinator.peer_id}"
            ways = FailoverNetwork(None, HttpsClient(own, shown().pin), routes=("https",))
            rate = await rate_of(coordinator, home, address, ways.network, own)
    assert rate >= LEAST
