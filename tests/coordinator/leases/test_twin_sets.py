"""A lease and its twin have the same prompt and seeds: counted once, learned from once, paid each."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.leases.expiry_budgets import EXPIRY_PARTS
from echo2.coordinator.metrics.run_metrics import counts
from tests.support.audit_world import AuditWorld
from tests.support.group_world import ALICE, BOB, group
from tests.support.ledger_sums import check_sums

AGAIN = "SELECT position, attempt FROM again WHERE position IN (SELECT position FROM leases WHERE id = ?)"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AuditWorld]:
    world = AuditWorld(tmp_path)
    world.prove(ALICE, BOB)
    yield world
    check_sums(world.group_service.database)


def on_their_way(world: AuditWorld) -> tuple[int, int]:
    """Return (running, undecided) as the room counts them."""
    assert world.group_service.progress is not None
    load = world.group_service.leases.load(world.group_service.progress, world.now)
    return load.running, load.undecided


def test_a_set_has_one_lease_of_each_kind(world: AuditWorld) -> None:
    world.pair()
    query = "INSERT INTO leases SELECT randomblob(16), node, randomblob(16), position, era, version, sent, expires,"
    query += " state, document, sealed, attempt, connection, party, twin, counts, ahead, late_after, stood FROM leases"
    query += " WHERE twin != ''"
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        world.group_service.database.do(query)


def test_a_set_counts_once_in_the_room_until_one_of_it_is_in_the_buffer(world: AuditWorld) -> None:
    buffered = world.group_service.count_buffered()
    lease = world.given(ALICE)
    running, undecided = on_their_way(world)
    twin = world.given(BOB)
    assert on_their_way(world) == (running, undecided)
    world.submit(group(lease), ALICE)
    assert on_their_way(world) == (running - 1, undecided + 1)
    world.submit(group(twin), BOB)
    assert on_their_way(world) == (running - 1, undecided + 1)
    world.decide_all()
    assert on_their_way(world) == (running - 1, undecided)
    assert world.group_service.count_buffered() == buffered + 1


def test_one_group_of_a_set_is_learned_from_and_each_is_paid_in_full(world: AuditWorld) -> None:
    lease, twin = world.pair()
    results = world.group_service.database.all("SELECT sum(rollouts) FROM task_results WHERE span = 'all'")[0][0]
    before = counts(world.group_service.database, world.now)
    world.submit(group(twin), BOB)
    (first,) = world.decide_all()
    world.submit(group(lease), ALICE)
    (second,) = world.decide_all()
    assert (first.verdict, first.trainable) == ("accepted", True)
    assert (second.verdict, second.code, second.trainable) == ("accepted", "ok", False)
    assert first.weight == second.weight > 0
    after = world.group_service.database.all("SELECT sum(rollouts) FROM task_results WHERE span = 'all'")[0][0]
    assert after - results == len(lease.seeds)
    counted = counts(world.group_service.database, world.now)
    assert (counted.spare - before.spare, counted.too_old - before.too_old) == (1, 0)
    row = "?, era, version, at, varied, behaviour, position, signal"
    query = f"INSERT INTO buffer SELECT {row} FROM buffer WHERE lease = ?"
    with pytest.raises(sqlite3.IntegrityError, match=r"buffer\.position"):
        world.group_service.database.do(query, (lease.id, twin.id))


def test_equal_groups_of_a_set_are_no_strike_against_either_node(world: AuditWorld) -> None:
    lease, twin = world.pair()
    mine, other = group(lease), group(twin)
    assert [one.tokens for one in mine.rollouts] == [one.tokens for one in other.rollouts]
    world.submit(mine, ALICE)
    world.submit(other, BOB)
    assert {receipt.verdict for receipt in world.decide_all()} == {"accepted"}
    assert world.group_service.strikes.of(ALICE) == world.group_service.strikes.of(BOB) == 0
    assert [world.group_service.accounts.of(node, world.now).rank for node in (ALICE, BOB)] == ["proven", "proven"]


def test_a_position_is_not_given_out_again_as_long_as_a_twin_is_open(world: AuditWorld) -> None:
    database, leases = world.group_service.database, world.group_service.leases
    lease = world.given(ALICE)
    world.now += 5_000
    twin = world.given(BOB)
    assert world.kind(twin) == "audit"
    world.now = lease.expires + 1
    world.group_service.tick(world.now)
    assert [leases.find(one.id).state for one in (lease, twin)] == ["expired", "open"]  # type: ignore[union-attr]
    assert database.all(AGAIN, (lease.id,)) == []
    world.now = twin.expires + 1
    world.group_service.tick(world.now)
    ((_, attempt),) = database.all(AGAIN, (lease.id,))
    assert attempt == 1


def test_a_position_whose_twin_was_accepted_is_never_given_out_again(world: AuditWorld) -> None:
    lease, twin = world.pair()
    world.submit(group(twin), BOB)
    world.decide_all()
    world.now = lease.expires + 1
    world.group_service.tick(world.now)
    assert world.group_service.database.all(AGAIN, (lease.id,)) == []


def test_a_refused_twin_leaves_the_position_to_the_other(world: AuditWorld) -> None:
    lease, twin = world.pair()
    assert world.refused(twin, ["9", "9"]).verdict == "refused"
    world.submit(group(lease), ALICE)
    (receipt,) = world.decide_all()
    assert receipt.trainable
    assert world.group_service.database.all(AGAIN, (lease.id,)) == []


def test_each_lease_of_a_set_that_expires_counts_in_the_budget_of_its_own_node(world: AuditWorld) -> None:
    lease, twin = world.pair()
    world.now = max(lease.expires, twin.expires) + 1
    world.group_service.tick(world.now)
    expired = "SELECT expired FROM budgets WHERE holder = ?"
    assert [world.group_service.database.value(expired, (node,)) for node in (ALICE, BOB)] == [
        EXPIRY_PARTS,
        EXPIRY_PARTS,
    ]


def test_a_restart_keeps_sets(world: AuditWorld) -> None:
    lease, twin = world.pair()
    world.group_service.tick(world.now)
    world.reopen(away=3_600_000, drawn=world.drawn)
    running, _ = on_their_way(world)
    buffered = world.group_service.count_buffered()
    world.submit(group(lease), ALICE)
    world.submit(group(twin), BOB)
    assert [receipt.trainable for receipt in world.decide_all()] == [True, False]
    assert world.group_service.count_buffered() == buffered + 1
    assert on_their_way(world) == (running - 1, 0)
