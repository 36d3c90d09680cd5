"""A run with several tasks: each has its share of the leases, and nodes need the code of the pure ones alone."""

from collections import Counter
from pathlib import Path

import pytest

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.environments.task_host import LocalTask
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.tasks.arithmetic import REVERSE_TASK
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.group_world import TEXT
from tests.support.hosted_task import Echoes, HostedTask, ServedTask
from tests.support.swarm import finished, make_swarm, whole, working


def tasks_of_leases(coordinator: Coordinator) -> list[str]:
    rows = coordinator.group_service.database.all("SELECT document FROM leases ORDER BY position, attempt")
    return [decode(document, Lease).task for (document,) in rows]


@on_fake_clock
@pytest.mark.slow
async def test_nodes_carry_a_mix_of_pure_and_single_tasks_to_its_last_step(tmp_path: Path) -> None:
    riddle = HostedTask(TEXT)
    hosts = [LocalTask(REVERSE_TASK, TEXT), riddle]
    swarm = make_swarm(tmp_path, host=hosts, task="3 reverse + riddle", steps=16)
    spec = swarm.run.runspec
    assert [(task.name, task.kind, task.weight) for task in spec.tasks] == [
        ("reverse", "pure", 3),
        ("riddle", "single", 1),
    ]
    async with swarm.coordinating() as coordinator:
        async with working(*(swarm.node(name) for name in ("alice", "bob", "carol"))):
            await until(lambda: finished(coordinator), 600)
            whole(swarm)
        state, leased = coordinator.view_builder.build(), tasks_of_leases(coordinator)
    assert (state.step, state.refused, state.undecided) == (16, {}, 0)
    assert Counter(leased[:32]) == {"reverse": 24, "riddle": 8}
    assert 16 <= riddle.scored <= 2 * leased.count("riddle")
    evaluation = state.evaluations[-1]
    assert [(task.task, task.prompts) for task in evaluation.tasks] == [("reverse", 4), ("riddle", 4)]
    assert evaluation.prompts == 8
    reverse, other = state.tasks
    assert (reverse.name, reverse.kind, reverse.share, other.share) == ("reverse", "pure", 0.75, 0.25)
    assert reverse.accepted + other.accepted == state.accepted
    assert other.accepted == riddle.scored // 2
    assert (reverse.sampled, other.greedy) == (evaluation.tasks[0].sampled, evaluation.tasks[1].greedy)


@on_fake_clock
@pytest.mark.slow
async def test_a_served_run_carries_tasks_of_one_turn_beside_those_of_several(tmp_path: Path) -> None:
    talk, short = ServedTask(TEXT, Echoes(3)), ServedTask(TEXT, Echoes(1), name="short")
    swarm = make_swarm(tmp_path, host=[talk, short], task="riddles + short", kind="served", ends=3.0, limit=24, steps=8)
    assert [task.kind for task in swarm.run.runspec.tasks] == ["served", "served"]
    async with swarm.coordinating() as coordinator:
        async with working(*(swarm.node(name) for name in ("alice", "bob"))):
            await until(lambda: finished(coordinator), 900)
            whole(swarm)
        state, leased = coordinator.view_builder.build(), Counter(tasks_of_leases(coordinator))
        assert state.refused == {}
        assert talk.open == short.open == 0
    assert abs(leased["riddles"] - leased["short"]) <= 1
    riddles, short_ones = state.tasks
    assert talk.begun >= 2 * riddles.accepted > 0
    assert short.begun >= 2 * short_ones.accepted > 0


@on_fake_clock
async def test_an_environment_that_hangs_keeps_no_other_task_from_its_rewards(tmp_path: Path) -> None:
    stuck, well = HostedTask(TEXT), HostedTask(TEXT, name="well")
    stuck.going.clear()
    swarm = make_swarm(tmp_path, host=[stuck, well], task="riddle + well", steps=6)
    async with swarm.coordinating() as coordinator, working(swarm.node("alice"), swarm.node("bob")):
        await until(lambda: well.scored >= 4, 300)
        assert stuck.scored == 0
        stuck.going.set()
        await until(lambda: finished(coordinator), 600)
        whole(swarm)


@on_fake_clock
@pytest.mark.slow
async def test_one_task_of_several_that_fails_pauses_the_run_by_its_name(tmp_path: Path) -> None:
    bad, well = HostedTask(TEXT, failing=1), HostedTask(TEXT, name="well")
    swarm = make_swarm(tmp_path, host=[bad, well], task="riddle + 2 well")
    async with swarm.coordinating() as coordinator:
        coordinator.group_service.episodes.of("riddle").failed.extend([True] * 90)
        async with working(*(swarm.node(name) for name in ("alice", "bob", "carol"))):
            await until(lambda: coordinator.learning.training.watch.pause, 1200)
        pause, state = coordinator.learning.training.watch.pause, coordinator.view_builder.build()
    assert pause.why.startswith("the environment of task riddle failed in 10")
    assert "division by zero" in pause.why
    riddle, good = state.tasks
    assert (sum(riddle.failed.values()), good.failed) == (bad.scored, {})
    assert (riddle.unscored, good.unscored) == (riddle.accepted, 0)
    assert good.accepted > riddle.accepted > 5
