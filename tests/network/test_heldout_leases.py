"""Volunteers evaluate versions: held-out groups are leased, checked, paid, and the result stands once all are in."""

from pathlib import Path

import pytest

from echo2.coordinator.daemon import Coordinator
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.group_world import TEXT
from tests.support.hosted_task import Dealt, Echoes, HostedTask, ServedTask
from tests.support.swarm import Swarm, accepted, finished, make_swarm, step, working

SETTINGS = {"heldout_groups": 2, "evaluate_every": 4, "steps": 16, "batch_groups": 2}


def heldout_leases(coordinator: Coordinator) -> list[Lease]:
    rows = coordinator.group_service.database.all("SELECT document FROM leases WHERE position < 0 ORDER BY position")
    return [decode(document, Lease) for (document,) in rows]


def learned_from(swarm: Swarm, leases: list[Lease]) -> set[bytes]:
    return {lease.id for lease in leases} & set(swarm.learner.drawn)


@on_fake_clock
@pytest.mark.parametrize("kind", ["pure", "single", "served", "opened"])
@pytest.mark.slow
async def test_nodes_evaluate_every_fourth_version(tmp_path: Path, kind: str) -> None:
    hosts = {
        "pure": None,
        "single": HostedTask(TEXT),
        "served": ServedTask(TEXT, Echoes(2)),
        "opened": ServedTask(TEXT, Dealt(2), kind="opened"),
    }
    host, more = hosts[kind], {}
    if host is not None:
        more = {"host": host, "task": host.facts.name}
    if kind in ("served", "opened"):
        more |= {"kind": "served", "ends": 3.0, "limit": 24}
    swarm = make_swarm(tmp_path, **SETTINGS, **more)
    async with swarm.coordinating() as coordinator:
        async with working(*(swarm.node(name) for name in ("alice", "bob", "carol"))):
            await until(lambda: finished(coordinator), 900)
        state, leases = coordinator.view_builder.build(), heldout_leases(coordinator)
    assert state.refused == {}
    assert [one.version for one in state.heldout] == [0, 4, 8, 12, 16]
    assert all((one.rate.prompts, one.rate.answers) == (2, 4) for one in state.heldout)
    assert state.heldout[-1].rate.by_operator == 2, "a finished run gives no leases"
    assert sum(one.rate.by_operator for one in state.heldout[1:-1]) <= 1, "of six"
    assert leases
    assert {lease.split for lease in leases} == {"heldout"}
    assert learned_from(swarm, leases) == set()
    assert state.heldout_groups == sum(2 - one.rate.by_operator for one in state.heldout)
    assert state.best_version == max(state.heldout, key=lambda one: (one.rate.pass_1, -one.version)).version


@on_fake_clock
@pytest.mark.slow
async def test_what_a_node_does_not_bring_others_or_the_operator_generate(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, **SETTINGS | {"steps": 40})
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice"), swarm.node("bob")):
            async with working(swarm.node("mallory")):
                await until(lambda: accepted(swarm.nodes[2]) >= 3 and heldout_leases(coordinator), 300)
            await until(lambda: finished(coordinator), 1200)
        state = coordinator.view_builder.build()
    assert [one.version for one in state.heldout] == list(range(0, 41, 4))
    assert all(one.rate.prompts == 2 for one in state.heldout)


@on_fake_clock
@pytest.mark.slow
async def test_a_coordinator_that_starts_again_finishes_the_plans(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, **SETTINGS)
    async with working(swarm.node("alice"), swarm.node("bob")):
        async with swarm.coordinating() as coordinator:
            await until(lambda: step(coordinator) >= 5 and heldout_leases(coordinator), 600)
            before = {lease.id for lease in heldout_leases(coordinator)}
        async with swarm.coordinating() as coordinator:
            await until(lambda: finished(coordinator), 900)
            state = coordinator.view_builder.build()
            after = heldout_leases(coordinator)
    assert before <= {lease.id for lease in after}
    assert {one.version for one in state.heldout} >= {0, 4, 8, 12, 16}


@on_fake_clock
async def test_a_run_without_heldout_groups_leases_none(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=8)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await until(lambda: finished(coordinator), 600)
        state = coordinator.view_builder.build()
        assert heldout_leases(coordinator) == []
    assert (state.heldout, state.best_version, state.heldout_groups) == ([], None, 0)
