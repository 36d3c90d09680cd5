"""Versions and the groups of a node: where these take long, versions are passed over and groups are drawn in time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from echo2.engines.engine import Job
from echo2.protocol.requests import Refusal
from tests.support.bigram import BigramEngine
from tests.support.clock import on_fake_clock, run_fake
from tests.support.fake_coordinator import InProcessEngine, Node, until
from tests.support.small_run import SmallRun
from tests.support.swarm import Swarm, accepted, make_swarm, step, working

STALENESS = 8


class UnevenEngine(InProcessEngine):
    """An engine whose groups do not end together: each third takes two fifths of the time of the others. `longest`:
    seconds."""

    def __init__(self, longest: float, places: int) -> None:
        super().__init__(seconds=longest, places=places)
        self.longest, self._begun = longest, 0

    async def _generating(self, engine: BigramEngine, job: Job) -> None:
        self._begun += 1
        self.seconds = self.longest * (0.4 if self._begun % 3 == 0 else 1.0)
        await super()._generating(engine, job)


def drawn_ages(swarm: Swarm, steps: int, engine: InProcessEngine) -> tuple[list[int], list[int]]:
    """Run a node for so many steps; return the ages at which its groups were drawn, and by how many ms its leases were
    sent after the version that follows theirs."""

    async def main() -> tuple[list[int], list[int]]:
        async with swarm.coordinating() as coordinator, working(swarm.node("node", engine=engine)):
            await until(lambda: step(coordinator) >= steps, 600)
            assert coordinator.view_builder.build().refused == {}
            database = coordinator.group_service.database
            ages = database.all("SELECT d.step - 1 - l.version FROM draws d JOIN leases l ON l.id = d.lease")
            late = database.all(
                "SELECT l.sent - v.at FROM leases l JOIN versions v ON v.era = l.era AND v.version = l.version + 1"
            )
            return [age for (age,) in ages], [ms for (ms,) in late]

    return run_fake(main)


@pytest.mark.slow
def test_a_node_with_long_groups_passes_over_versions_and_its_groups_are_drawn_within_half_of_s(tmp_path: Path) -> None:
    """The learner waits for this node, and a group takes about a step."""
    swarm = make_swarm(tmp_path, staleness=STALENESS, batch_groups=4, steps=100)
    ages, late = drawn_ages(swarm, 24, UnevenEngine(6.0, places=4))
    assert max(late) > 5_000, "groups began under a version after the next one had come"
    assert max(ages) <= STALENESS // 2
    assert len(ages) >= 4 * 12


@pytest.mark.slow
def test_a_node_with_short_groups_takes_each_version_at_once(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, staleness=STALENESS, batch_groups=4, steps=100)
    swarm.learner.seconds = 4.0
    _, late = drawn_ages(swarm, 12, UnevenEngine(0.8, places=4))
    assert max(late) < 1_000


@asynccontextmanager
async def third_version(small_run: SmallRun) -> AsyncIterator[Node]:
    """Run a node at version 2 of steps of 3 s; its groups take a step. S is 4."""
    async with small_run.working(engine=UnevenEngine(3.0, places=6)) as node:
        for version in (1, 2):
            await anyio.sleep(3.0)
            await small_run.coordinator.publish(version)
        await until(lambda: node.holds(2))
        done = accepted(node)
        await until(lambda: accepted(node) >= done + 6)
        yield node


@on_fake_clock
async def test_a_node_all_of_whose_groups_are_wanted_passes_over_a_version(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with third_version(small_run) as node:
        await coordinator.publish(3)
        began = len(coordinator.leases)
        await anyio.sleep(3.0)
        assert node.daemon.follower.heads.newest.version == 3
        assert node.holds(2)
        assert len(coordinator.leases) > began
        await coordinator.publish(4)
        await until(lambda: node.holds(4), 13.0)
        await until(lambda: max(lease.version for lease in coordinator.leases.values()) == 4)
        versions = {lease.version for lease in list(coordinator.leases.values())[began:]}
        assert versions == {2, 4}
        decided = len(coordinator.decided)
        await until(lambda: len(coordinator.decided) >= decided + 4)
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
async def test_a_node_that_was_refused_a_lease_changes_at_once(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with third_version(small_run) as node:
        coordinator.refusals["lease"] = Refusal(code="no-room", sentence="enough", retry_after=100)
        await until(lambda: node.daemon.rollouts.refusals)
        del coordinator.refusals["lease"]
        began = len(coordinator.leases)
        await until(lambda: len(coordinator.leases) > began)
        await coordinator.publish(3)
        await anyio.sleep(1.0)
        began = len(coordinator.leases)
        await until(lambda: node.holds(3), 13.0)
        await until(lambda: len(coordinator.leases) > began)
        assert {lease.version for lease in list(coordinator.leases.values())[began:]} == {3}
