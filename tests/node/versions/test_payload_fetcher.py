"""Payloads over slow connections, from silent peers."""

from pathlib import Path

import anyio
import pytest

from node.versions.payload_fetcher import FETCH_PATIENCE
from p2p.memory.transport import MemoryNetwork
from p2p.network import Manifest
from protocol.versions import manifest_of_edge
from tests.support import bigram
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, make_node, until
from tests.support.swarm import working


def test_a_slow_connection_is_not_a_stalled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The payload takes three times the patience, and no attempt is abandoned."""
    monkeypatch.setattr("tests.support.fake_coordinator.random_table", lambda seed: bigram.random_table(seed, 768))

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            ((_, edge, _),) = coordinator.edges
            network.set_uplink(coordinator.peer_id, edge.length / (3 * FETCH_PATIENCE))
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                began = anyio.current_time()
                await until(lambda: node.daemon.engine.current, 10 * FETCH_PATIENCE)
                assert anyio.current_time() - began > 2.5 * FETCH_PATIENCE
                assert node.daemon.follower.refused == []

    run_fake(main)


def test_a_fetch_without_a_sender_is_abandoned_with_a_reason(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network) as peer:
            await coordinator.publish(0)
            ((_, edge, path),) = coordinator.edges
            await peer.unshare(edge.payload_hash)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: node.daemon.follower.refused, 2 * FETCH_PATIENCE)
                (reason,) = node.daemon.follower.refused
                assert f"no chunk of the payload for version 0 ({edge.length} bytes)" in reason
                assert "from 1 connected peers" in reason
                await peer.share(_manifest(coordinator), path)
                await until(lambda: node.daemon.engine.current, 2 * FETCH_PATIENCE)
                await until(lambda: not node.daemon.follower.trouble)

    run_fake(main)


def _manifest(coordinator: FakeCoordinator) -> Manifest:
    return manifest_of_edge(coordinator.edges[-1][1])
