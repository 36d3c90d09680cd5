"""The owner's commands: status, why, pause, resume."""

import anyio
import pytest

from echo2.node.daemon import FREED_WITHIN
from echo2.node.rollouts.worker import UNPUBLISHED_REASON
from echo2.node.versions.payload_fetcher import FETCH_PATIENCE
from echo2.protocol.requests import Refusal
from echo2.protocol.versions import manifest_of_edge
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import (
    InProcessEngine,
    until,
)
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
async def test_the_owner_sees_how_far_behind_the_node_is_and_what_it_fetched(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving(published=False) as peer:
        node = small_run.node()
        async with working(node):
            await until(lambda: node.daemon.follower.heads.newest is None and node.coordinator_client.peer)
            assert (await node.daemon.commands.status({}))["lag"] is None
            assert (await node.daemon.commands.why({}))["blocked"] == f"no version to work with: {UNPUBLISHED_REASON}"
            await coordinator.publish(0)
            await until(lambda: node.daemon.engine.current)
            status = await node.daemon.commands.status({})
            assert (status["version"], status["newest"], status["lag"]) == (0, 0, 0)
            kept = [edge.length for _, edge, _ in coordinator.edges]
            share, peer.share = peer.share, _nothing  # type: ignore[method-assign]
            await coordinator.publish(1)
            await coordinator.publish(2)
            await until(lambda: node.daemon.follower.heads.newest.version == 2)
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


@on_fake_clock
async def test_equal_refusals_are_one_row_with_their_count(small_run: SmallRun) -> None:
    async with small_run.working() as node:
        await until(lambda: node.daemon.rollouts.workers)
        late, full = Refusal(code="late", sentence="x"), Refusal(code="full", sentence="y")
        node.daemon.rollouts.workers[0].refusals[:] = [late, full, late]
        rows = (await node.daemon.commands.why({}))["refusals"]
    assert rows == [
        {"code": "late", "reason": "x", "times": 2},
        {"code": "full", "reason": "y", "times": 1},
    ]


async def _nothing(*_: object) -> None:
    return None


@on_fake_clock
async def test_a_pause_frees_the_device_at_once_and_loses_no_lease(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.working(engine=InProcessEngine(seconds=20.0)) as node:
        await until(lambda: node.daemon.rollouts.working)
        await node.daemon.commands.pause({"seconds": 30})
        await anyio.sleep(5)
        assert node.engine.engine is None
        assert (await node.daemon.commands.status({}))["state"] == "paused"
        why = await node.daemon.commands.why({})
        assert "paused by the owner" in why["blocked"]
        assert why["quarantined"] == []
        await coordinator.publish(1)
        await anyio.sleep(10)
        assert node.engine.engine is None
        assert len(coordinator.leases) == 1
        await until(lambda: accepted(node) >= 1)
        assert node.daemon.engine.deaths == 0


@on_fake_clock
@pytest.mark.slow
async def test_a_pause_without_an_end_lasts_until_resumed(small_run: SmallRun) -> None:
    async with small_run.working() as node:
        await until(lambda: node.daemon.rollouts.done >= 1)
        await node.daemon.commands.pause({})
        await anyio.sleep(FREED_WITHIN + 1)  # a group under way may still be worked off
        done = node.daemon.rollouts.done
        await anyio.sleep(900)
        assert node.daemon.rollouts.done == done
        await node.daemon.commands.resume({})
        await until(lambda: node.daemon.rollouts.done > done)
