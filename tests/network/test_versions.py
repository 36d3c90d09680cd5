"""Versions reached by unusual chains: the engine computes with the version that the node reports."""

import pytest

from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted


@on_fake_clock
async def test_a_full_payload_on_top_of_a_loaded_version_is_what_the_engine_then_computes_with(
    small_run: SmallRun,
) -> None:
    coordinator = small_run.coordinator
    async with small_run.working() as node:
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


@on_fake_clock
@pytest.mark.slow
async def test_no_group_is_generated_under_an_intermediate_version(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 1)
        small_run.network.partition([coordinator.peer_id], [node.peer_id])
        for version in (1, 2, 3, 4):
            await coordinator.publish(version)
        small_run.network.heal()
        await until(lambda: node.daemon.engine.current.version == 4, 120)
        await until(lambda: max(lease.version for lease in coordinator.leases.values()) == 4)
        assert {lease.version for lease in coordinator.leases.values()} == {0, 4}
