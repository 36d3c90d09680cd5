"""Versions reached by unusual chains: the engine computes with the version that the node reports."""

from pathlib import Path

from p2p.memory.transport import MemoryNetwork
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, make_node, until
from tests.support.swarm import accepted, working


def test_a_full_payload_on_top_of_a_loaded_version_is_what_the_engine_then_computes_with(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: accepted(node) >= 2)
                honest = coordinator.snapshots.pop(0)
                coordinator.edges.clear()
                await coordinator.publish(1, table_seed=5)  # without a previous version: a full edge alone
                coordinator.snapshots[0] = honest
                await until(lambda: node.daemon.engine.current.version == 1)
                assert node.engine.engine.snapshot.root == coordinator.published[1].root
                before = accepted(node)
                await until(lambda: accepted(node) >= before + 4)
                assert "refused" not in node.daemon.outbox.counts()

    run_fake(main)


def test_no_group_is_generated_under_an_intermediate_version(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: accepted(node) >= 1)
                network.partition([coordinator.peer_id], [node.peer_id])
                for version in (1, 2, 3, 4):
                    await coordinator.publish(version)
                network.heal()
                await until(lambda: node.daemon.engine.current.version == 4, 120)
                await until(lambda: max(lease.version for lease in coordinator.leases.values()) == 4)
                assert {lease.version for lease in coordinator.leases.values()} == {0, 4}

    run_fake(main)
