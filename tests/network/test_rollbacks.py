"""A whole run whose guard strikes: it is paused, an earlier version comes again, and everybody goes on with it."""

import asyncio
from pathlib import Path

import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.training.guard_rules import STEP_RULES
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, until
from tests.support.swarm import Swarm, accepted, make_swarm, step, wall, working


def strike(coordinator: Coordinator) -> None:
    """Let the guard see as many steps without an update as it takes."""
    for number in range(1, STEP_RULES["gradient"].pause + 1):
        coordinator.learning.guarding.on_step(
            era(coordinator), 10_000 + number, {"updates": 1.0, "skipped_updates": 1.0}
        )


def era(coordinator: Coordinator) -> int:
    at = coordinator.group_service.progress
    return at.era


def leases(coordinator: Coordinator) -> int:
    return int(coordinator.group_service.database.value("SELECT count(*) FROM leases"))


def root(coordinator: Coordinator, version: int) -> bytes:
    return next(one.root for one in coordinator.publisher.versions if one.version == version)


async def works_in(node: Node, coordinator: Coordinator, number: int) -> None:
    had = accepted(node)
    await until(lambda: accepted(node) > had + 2 and node.daemon.engine.current.era == number, 600)


@on_fake_clock
@pytest.mark.slow
async def test_an_earlier_version_comes_again_and_nodes_of_every_version_go_on_with_it(tmp_path: Path) -> None:
    """Bob was cut off while he had the very version that comes again; Carol joins afterwards."""
    swarm = make_swarm(tmp_path)
    alice, bob = swarm.node("alice"), swarm.node("bob")
    async with swarm.coordinating() as coordinator, working(alice, bob):
        await until(lambda: step(coordinator) >= 4 and accepted(bob) > 2, 600)
        swarm.network.partition([bob.peer_id], [alice.peer_id, swarm.run.peer_id])
        his = bob.daemon.engine.current.version
        await keep(coordinator, his)
        await until(lambda: step(coordinator) >= his + 8, 600)
        strike(coordinator)
        assert coordinator.view_builder.build().phase == "paused"
        coordinator.learning.guarding.order(his, 0.5)
        await until(lambda: era(coordinator) > 1, 60)
        at, latest = coordinator.group_service.progress, coordinator.publisher.latest
        assert at is not None
        assert latest.root == root(coordinator, his)
        assert latest.version == at.version > his + 8
        number = era(coordinator)
        await works_in(alice, coordinator, number)
        swarm.network.heal()
        await works_in(bob, coordinator, number)
        carol = swarm.node("carol")
        async with working(carol):
            await works_in(carol, coordinator, number)
        state = coordinator.view_builder.build()
        Ledger(coordinator.group_service.database).verify()
    assert state.phase == "learning"
    (row,) = state.guard.rollbacks
    assert (row.version, row.new_version, row.rate) == (his, latest.version, 0.5)
    assert state.refused.keys() <= {"late"}


async def keep(coordinator: Coordinator, version: int) -> None:
    """Let the store keep a version, as it does with the best."""
    coordinator.learning.guarding.examining(next(o for o in coordinator.publisher.versions if o.version == version))


@on_fake_clock
@pytest.mark.slow
async def test_while_the_guard_pauses_the_run_nodes_get_no_lease_and_no_step_is_made(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    nodes = [swarm.node(name) for name in ("alice", "bob", "carol")]
    async with swarm.coordinating() as coordinator, working(*nodes):
        await until(lambda: step(coordinator) >= 8 and all(accepted(one) > 3 for one in nodes), 900)
        strike(coordinator)
        given = leases(coordinator)
        await asyncio.sleep(60)  # a step that has begun is finished
        stopped = step(coordinator)
        await asyncio.sleep(60)
        assert leases(coordinator) == given
        assert step(coordinator) == stopped
        assert coordinator.learning.training.watch.resume()
        await until(lambda: step(coordinator) > stopped, 300)


@on_fake_clock
async def test_a_coordinator_killed_between_order_and_rollback_carries_it_out(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with working(swarm.node("alice")):
        async with swarm.coordinating() as coordinator:
            await until(lambda: step(coordinator) >= 4, 600)
            base = root(coordinator, 0)
            coordinator.learning.guarding.order(0)
            await coordinator.group_service.durable()
        before = published(swarm)
        async with swarm.coordinating() as coordinator:
            await until(lambda: coordinator.group_service.progress, 60)
            await until(lambda: era(coordinator) > 1, 60)
            first = next(one for one in coordinator.publisher.versions if one.era > 1)
            assert first.root == base
            assert first.version > before
            assert not coordinator.learning.guarding.ordered
            number = era(coordinator)
            await until(lambda: step(coordinator) > first.version + 2, 300)
        async with swarm.coordinating() as coordinator:
            await until(lambda: coordinator.group_service.progress, 60)
            assert era(coordinator) == number <= wall(), "it is carried out once"


def published(swarm: Swarm) -> int:
    return swarm.learner.step_number - 1
