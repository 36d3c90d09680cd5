"""A run whose task no volunteer has: nodes sample one turn, the operator's environment rewards it after the check."""

from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.daemon import Coordinator
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.group_world import TEXT
from tests.support.hosted_task import HostedTask
from tests.support.swarm import Swarm, finished, make_swarm, whole, working


def _received(coordinator: Coordinator) -> int:
    return int(coordinator.group_service.database.value("SELECT count(*) FROM leases WHERE state = 'received'"))


def riddles(folder: Path, host: HostedTask, **run: Any) -> Swarm:
    return make_swarm(folder, host=host, task="riddle", **run)


@on_fake_clock
@pytest.mark.slow
async def test_nodes_without_the_tasks_code_carry_a_run_to_its_last_step(tmp_path: Path) -> None:
    host = HostedTask(TEXT)
    swarm = riddles(tmp_path, host, steps=12)
    assert [(task.name, task.version, task.kind) for task in swarm.run.runspec.tasks] == [("riddle", 3, "single")]
    async with swarm.coordinating() as coordinator:
        nodes = [swarm.node(name) for name in ("alice", "bob", "carol")]
        async with working(*nodes):
            await until(lambda: finished(coordinator), 600)
            whole(swarm)
        state = coordinator.view_builder.build()
    assert (state.step, state.refused, state.undecided) == (12, {}, 0)
    assert state.accepted == state.received > 0
    assert host.scored == 2 * state.accepted
    assert [one.prompts for one in coordinator.history.evaluations.values()] == [4, 4, 4, 4]


@on_fake_clock
async def test_a_coordinator_that_ends_while_groups_wait_for_their_rewards_loses_none(tmp_path: Path) -> None:
    host = HostedTask(TEXT)
    swarm = riddles(tmp_path, host, steps=6)
    host.going.clear()
    node = swarm.node("alice")
    async with working(node):
        async with swarm.coordinating() as coordinator:
            await until(lambda: _received(coordinator) == 2 and not coordinator.group_service.waiting(), 120)
        host.going.set()
        async with swarm.coordinating() as coordinator:
            await until(lambda: finished(coordinator), 600)
            whole(swarm)
            assert coordinator.view_builder.build().refused == {}


@on_fake_clock
@pytest.mark.slow
async def test_an_episode_that_fails_is_paid_and_never_learned_from(tmp_path: Path) -> None:
    host = HostedTask(TEXT, failing=50)
    swarm = riddles(tmp_path, host, steps=30)
    async with swarm.coordinating() as coordinator:
        node = swarm.node("alice")
        async with working(node):
            await until(lambda: finished(coordinator), 600)
            whole(swarm)
        state = coordinator.view_builder.build()
        unscored = coordinator.group_service.database.value("SELECT count(*) FROM verdicts WHERE code = 'task-score'")
    assert state.refused == {}
    assert unscored == host.scored // 50 > 0
    assert state.accepted == state.received
    assert coordinator.group_service.episodes.of("riddle").reason == "score raised ZeroDivisionError: division by zero"


@on_fake_clock
@pytest.mark.slow
async def test_an_environment_that_fails_in_more_than_5_percent_of_episodes_pauses_the_run(tmp_path: Path) -> None:
    host = HostedTask(TEXT, failing=4)
    swarm = riddles(tmp_path, host)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await until(lambda: coordinator.learning.training.watch.pause, 3600)
        pause = coordinator.learning.training.watch.pause
    assert pause.why.startswith("the environment failed in 101 of the last ")
    assert "division by zero" in pause.why
