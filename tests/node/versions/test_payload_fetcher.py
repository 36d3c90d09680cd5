"""Payloads over slow connections, from silent peers."""

import anyio
import pytest

from node.versions.payload_fetcher import FETCH_PATIENCE
from p2p.network import Manifest
from protocol.versions import manifest_of_edge
from tests.support import bigram
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import FakeCoordinator, until
from tests.support.small_run import SmallRun
from tests.support.swarm import working


@on_fake_clock
async def test_a_slow_connection_is_not_a_stalled_one(small_run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The payload takes three times the patience, and no attempt is abandoned."""
    monkeypatch.setattr("tests.support.fake_coordinator.random_table", lambda seed: bigram.random_table(seed, 768))
    coordinator = small_run.coordinator
    async with small_run.serving():
        ((_, edge, _),) = coordinator.edges
        small_run.network.set_uplink(coordinator.peer_id, edge.length / (3 * FETCH_PATIENCE))
        node = small_run.node()
        async with working(node):
            began = anyio.current_time()
            await until(lambda: node.daemon.engine.current, 10 * FETCH_PATIENCE)
            assert anyio.current_time() - began > 2.5 * FETCH_PATIENCE
            assert node.daemon.follower.refused == []


@on_fake_clock
async def test_a_fetch_without_a_sender_is_abandoned_with_a_reason(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving() as peer:
        ((_, edge, path),) = coordinator.edges
        await peer.unshare(edge.payload_hash)
        node = small_run.node()
        async with working(node):
            await until(lambda: node.daemon.follower.refused, 2 * FETCH_PATIENCE)
            (reason,) = node.daemon.follower.refused
            assert f"no chunk of the payload for version 0 ({edge.length} bytes)" in reason
            assert "from 1 connected peers" in reason
            await peer.share(_manifest(coordinator), path)
            await until(lambda: node.daemon.engine.current, 2 * FETCH_PATIENCE)
            await until(lambda: not node.daemon.follower.trouble)


def _manifest(coordinator: FakeCoordinator) -> Manifest:
    return manifest_of_edge(coordinator.edges[-1][1])
