"""A node over real libp2p, whose coordinator is 150 ms of round trip away."""

import time
from pathlib import Path

import pytest

from benchmarks.harness.delay_proxy import delay_proxy
from echo2.node.config import NodeConfig
from echo2.node.daemon import NodeDaemon
from echo2.node.run_context import RunContext
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.multiaddr import address_of
from echo2.p2p.network import Network
from tests.support.fake_coordinator import START, FakeCoordinator, InProcessEngine, Node, until
from tests.support.libp2p_peers import LOOPBACK
from tests.support.swarm import working

ROUND_TRIP = 0.15
GROUPS = 200


def milliseconds() -> int:
    """Return the time by the machine's clock, in the year of the Root."""
    return START + int(time.monotonic() * 1000)


@pytest.mark.slow
async def test_groups_are_handed_in_far_quicker_than_one_per_round_trip(tmp_path: Path) -> None:
    coordinator = FakeCoordinator(tmp_path / "coordinator", now=milliseconds)
    peer = ThreadedPeer(coordinator.identity, [LOOPBACK])
    async with coordinator.serving_as(peer):
        port = address_of((await peer.addresses())[0]).port
        async with delay_proxy(port, ROUND_TRIP / 2) as far:
            address = f"/ip4/127.0.0.1/tcp/{far}/p2p/{coordinator.peer_id}"
            await coordinator.publish(0, addresses=[address])
            (tmp_path / "node").mkdir()
            key = generate_key()
            context = RunContext.open(tmp_path / "node", coordinator.invite(address), key, local=milliseconds, seed=7)
            engine, own = InProcessEngine(seconds=1.0, places=64), ThreadedPeer(key, [LOOPBACK])
            daemon = NodeDaemon(NodeConfig(home=tmp_path / "node"), context, Network.of(own), lambda: engine)
            async with working(Node(daemon, engine, own.peer_id, tmp_path / "node")):
                await until(lambda: len(coordinator.submitted) >= 64)
                began, before = time.monotonic(), len(coordinator.submitted)
                await until(lambda: len(coordinator.submitted) >= before + GROUPS)
                rate = (len(coordinator.submitted) - before) / (time.monotonic() - began)
                print(f"{rate:.1f} groups per second at {1000 * ROUND_TRIP:.0f} ms of round trip")
    assert rate > 2 / ROUND_TRIP, "one at a time would be less than 1 per round trip"
