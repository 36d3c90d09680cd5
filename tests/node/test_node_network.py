"""Whole nodes on an in-memory network, against an honest coordinator, under a fake clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from p2p.exits import Exit
from p2p.memory import MemoryNetwork
from tests.clock import run_fake
from tests.node.fake_coordinator import FakeCoordinator, Node, make_node, until


@asynccontextmanager
async def at_work(*nodes: Node) -> AsyncIterator[None]:
    """Run these daemons until the block ends."""
    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(node.daemon.run)
        yield
        tasks.cancel_scope.cancel()


def test_a_node_joins_follows_works_and_is_credited(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with at_work(node):
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 3)
                for version in (1, 2, 3):
                    await coordinator.publish(version)
                    await until(lambda v=version: node.daemon.engine.held.version == v)
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 10)
                assert node.daemon.outbox.counts().get("refused", 0) == 0
                assert {lease.version for lease in coordinator.leases.values()} == {0, 1, 2, 3}

    run_fake(main)


def test_a_finished_node_delivers_everything_and_ends(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            ended: list[Exit] = []

            async def life() -> None:
                ended.append(await node.daemon.run())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(life)
                await until(lambda: node.daemon.rollouts.done >= 3)
                node.daemon.interrupt("the test")
                await until(lambda: ended)
            assert ended == [Exit.OK]
            assert set(coordinator.leases) == set(coordinator.submitted) == coordinator.confirmed

    run_fake(main)
