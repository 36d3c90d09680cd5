"""Groups that are decided together have the verdicts, and leave the rows, of groups decided one after the other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.accounts.vesting import VESTED_AFTER
from echo2.coordinator.verification.verification import judge
from echo2.p2p.identity import peer_id
from tests.support import sqlite_cost
from tests.support.audit_world import AuditWorld
from tests.support.canary_world import CanaryWorld
from tests.support.group_world import ALICE, BOB, World, group, honest_scores


def of_some_nodes(folder: Path) -> World:
    world = World(folder, batch_groups=64, per_node=64, newcomers=1.0)
    for number in range(9):
        node = (ALICE, BOB)[number % 2]
        world.submit(group(world.lease(node)), node)
    return world


def of_one_set(folder: Path) -> World:
    world = AuditWorld(folder)
    world.prove(ALICE, BOB)
    lease, twin = world.pair()
    world.submit(group(lease), ALICE)
    world.submit(group(twin), BOB)
    return world


def with_a_canary(folder: Path) -> World:
    """Alice, who has nothing unvested, brings a canary, and groups enough after it to vest it."""
    world = CanaryWorld(folder, canaries=0.1, batch_groups=64)
    world.prove(BOB)
    for _ in range(4):
        world.answered(world.given(BOB))
    world.prove(ALICE, groups=20)
    assert world.unvested(peer_id(ALICE)) == 0
    leases = [world.given(ALICE)]
    while world.kind(leases[-1]) != "canary":
        leases.append(world.given(ALICE))
    for lease in [*leases, *(world.given(ALICE) for _ in range(VESTED_AFTER + 1))]:
        world.submit(group(lease), ALICE)
    return world


WORLDS = {
    "groups of some nodes": of_some_nodes,
    "two groups of one set": of_one_set,
    "a canary among groups": with_a_canary,
}


def tables(world: World) -> dict[str, list[tuple[Any, ...]]]:
    database = world.group_service.database
    names = [name for (name,) in database.all("SELECT name FROM sqlite_schema WHERE type = 'table'") if name != "facts"]
    return {name: sorted(database.all(f"SELECT * FROM {name}"), key=repr) for name in names}


@pytest.mark.parametrize("made", WORLDS.values(), ids=WORLDS)
@pytest.mark.slow_but("groups of some nodes")
def test_groups_decided_together_are_decided_as_one_after_the_other(
    tmp_path: Path, made: Callable[[Path], World]
) -> None:
    for name in ("together", "apart"):
        (tmp_path / name).mkdir()
    together, apart = made(tmp_path / "together"), made(tmp_path / "apart")
    assert tables(together) == tables(apart)
    judged = [
        [
            (one, judge(one.submission.rollouts, honest_scores(one.submission)))
            for one in world.group_service.list_undecided()
        ]
        for world in (together, apart)
    ]
    with sqlite_cost.statements(together.group_service.database) as run:
        receipts = together.group_service.decide_all(judged[0], together.now)
    assert [one for one in run if one.startswith(("BEGIN", "COMMIT", "ROLLBACK"))] == ["BEGIN IMMEDIATE", "COMMIT"]
    assert receipts == [apart.group_service.decide(one, verdict, apart.now) for one, verdict in judged[1]]
    assert len(receipts) > 1
    assert tables(together) == tables(apart)
    together.group_service.ledger.verify()


def test_a_group_that_is_given_twice_is_decided_once(tmp_path: Path) -> None:
    world = of_some_nodes(tmp_path)
    (first, *_) = world.group_service.list_undecided()
    verdict = judge(first.submission.rollouts, honest_scores(first.submission))
    receipts = world.group_service.decide_all([(first, verdict), (first, verdict)], world.now)
    assert receipts[0] == receipts[1]
    assert world.group_service.database.value("SELECT count(*) FROM verdicts") == 1
