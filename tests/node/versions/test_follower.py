"""How a node follows versions: over slow lines, silent peers, and what it tells its owner of that."""

from pathlib import Path

import anyio
import pytest

from node.versions.payload_fetcher import FETCH_PATIENCE, PayloadFetcher
from p2p.memory.transport import MemoryNetwork
from p2p.network import Manifest
from p2p.wire_types import decode
from protocol.requests import DocumentsRequest
from protocol.versions import manifest_of_edge
from tests.support import bigram
from tests.support.clock import run_fake
from tests.support.fake_coordinator import HEAD_LIFE, FakeCoordinator, make_node, until
from tests.support.swarm import working


def test_a_slow_line_is_no_stalled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The payload takes three times the patience, and no plan is dropped on the way."""
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


def test_a_payload_that_nobody_sends_is_given_up_and_the_reason_named(tmp_path: Path) -> None:
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


def test_a_node_to_which_gossip_brings_nothing_asks_for_the_head_every_half_of_its_life(tmp_path: Path) -> None:
    """Row A3. The node is paused, so that no refused lease makes it ask. On 439044d it stays at the first Head."""

    async def nothing(topic: str, data: bytes) -> None:
        """Lose a message."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network) as peer:
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: node.daemon.engine.current)
                node.daemon.run_state.pause(None)
                peer.publish = nothing  # type: ignore[method-assign]
                for version in (1, 2):
                    await coordinator.publish(version)
                    await anyio.sleep(HEAD_LIFE / 2000 + 1)
                    assert node.daemon.follower.newest.version == version

    run_fake(main)


def test_the_owner_sees_how_far_behind_the_node_is_and_what_it_fetched(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network) as peer:
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: node.daemon.follower.newest is None and node.coordinator_client.peer)
                assert (await node.daemon.commands.status({}))["lag"] is None
                await coordinator.publish(0)
                await until(lambda: node.daemon.engine.current)
                status = await node.daemon.commands.status({})
                assert (status["version"], status["newest"], status["lag"]) == (0, 0, 0)
                kept = [edge.length for _, edge, _ in coordinator.edges]
                share, peer.share = peer.share, _nothing  # type: ignore[method-assign]
                await coordinator.publish(1)
                await coordinator.publish(2)
                await until(lambda: node.daemon.follower.newest.version == 2)
                status = await node.daemon.commands.status({})
                assert (status["version"], status["newest"], status["lag"]) == (0, 2, 2)
                assert status["payload_bytes"] == sum(kept)
                peer.share = share  # type: ignore[method-assign]
                for _, edge, path in coordinator.edges[1:]:
                    await peer.share(manifest_of_edge(edge), path)
                await until(lambda: node.daemon.engine.current.version == 2, 2 * FETCH_PATIENCE)
                status = await node.daemon.commands.status({})
                lengths = [edge.length for _, edge, _ in coordinator.edges]
                assert (status["lag"], status["payload_bytes"]) == (0, sum(lengths))
                assert [row["nbytes"] for row in status["payloads"]] == lengths

    run_fake(main)


async def _nothing(*_: object) -> None:
    return None


def test_a_node_asks_for_each_document_once_however_long_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index names the full edge and its anchor for as long as the run goes on; here a node keeps 3 documents of a
    kind and no payload, and after 20 versions has asked for nothing twice."""
    monkeypatch.setattr("node.versions.follower.DOCUMENTS_KEPT", 3)
    asked: list[bytes] = []

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        tidy = PayloadFetcher.tidy
        monkeypatch.setattr(
            PayloadFetcher, "tidy", lambda payloads, era, version, quota: tidy(payloads, era, version, 0)
        )
        answer = coordinator.answer_documents

        async def counted(peer: str, data: bytes) -> bytes:
            asked.extend(decode(data, DocumentsRequest).hashes)
            return await answer(peer, data)

        coordinator.answer_documents = counted  # type: ignore[method-assign]
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                for version in range(20):
                    await coordinator.publish(version)
                    await until(lambda: node.daemon.engine.current and node.daemon.engine.current.version == version)  # noqa: B023

    run_fake(main)
    twice = len(asked) - len(set(asked))
    assert twice == 0, f"{twice} of {len(asked)} documents were asked for again"


def test_a_node_keeps_no_payload_that_no_index_can_name_however_large_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row A5. Here an index names the first edge and the newest 4, and a node keeps 6; after 20 versions 439044d keeps
    21 payloads, and reads the documents of them all at each version."""
    monkeypatch.setattr("node.versions.follower.DOCUMENTS_KEPT", 6)

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                for version in range(21):
                    del coordinator.edges[1:-3]
                    await coordinator.publish(version)
                    await until(lambda: node.daemon.engine.current and node.daemon.engine.current.version == version)  # noqa: B023
                # The newest version's tidying may still be under way; that of the one before is done.
                payloads = {file.hash for file in node.daemon.context.store.payloads()}
                assert len(payloads) <= 8
                assert {edge.payload_hash for _, edge, _ in coordinator.edges} <= payloads
                assert len(node.daemon.context.store.documents("edge")) <= 8

    run_fake(main)
