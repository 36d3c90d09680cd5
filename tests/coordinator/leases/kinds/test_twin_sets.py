"""An overdue lease is covered by a twin: same prompt and seeds, counted once, learned from once, paid each."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.coordinator.metrics.run_metrics import counts
from echo2.p2p.limits.origin import LOCAL, Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.group_world import ALICE, BOB, SPEC, group
from tests.support.ledger_sums import check_sums
from tests.support.twin_world import CAROL, HOMES, LONG, TURNAROUND, TwinWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TwinWorld]:
    world = TwinWorld(tmp_path)
    world.prove(ALICE, groups=9)
    world.prove(BOB)
    yield world
    check_sums(world.group_service.database)
    world.close()


def expired(world: TwinWorld, node: bytes) -> int:
    """Return how many leases of the last hour count as expired in a node's budget."""
    return world.group_service.database.value("SELECT expired FROM budgets WHERE holder = ?", (node,)) or 0


def on_their_way(world: TwinWorld) -> tuple[int, int]:
    """Return (running, undecided) as the room counts them."""
    assert world.group_service.progress is not None
    load = world.group_service.leases.load(world.group_service.progress, world.now)
    return load.running, load.undecided


def covered(world: TwinWorld) -> tuple[Lease, Lease]:
    """Return a lease of Alice's and Bob's twin of it."""
    lease = world.overdue(ALICE, by=BOB)
    return lease, world.given(BOB)


def test_a_twin_has_the_prompt_the_seeds_and_the_version_of_the_lease_that_it_covers(world: TwinWorld) -> None:
    lease, twin = covered(world)
    same = ("task", "task_version", "index", "prompt", "seeds", "limit", "era", "version", "root", "split")
    assert [getattr(twin, name) for name in same] == [getattr(lease, name) for name in same]
    assert twin.id != lease.id
    assert (twin.node, twin.sent) == (BOB, world.now)


def test_no_field_of_a_twin_tells_that_it_is_one(world: TwinWorld) -> None:
    lease, twin = covered(world)
    own = msgspec.structs.replace(lease, id=twin.id, node=BOB, nonce=twin.nonce, sent=twin.sent, expires=twin.expires)
    assert encode(twin) == encode(msgspec.structs.replace(own, at_once=twin.at_once))
    usual = world.group_service.database.value("SELECT document FROM leases WHERE node = ? AND twin = ''", (BOB,))
    assert twin.at_once == msgspec.msgpack.decode(usual, type=Lease).at_once


def test_a_lease_is_covered_once(world: TwinWorld) -> None:
    covered(world)
    world.now += 15_000
    assert isinstance(world.ask_for(BOB), Refusal)
    query = "INSERT INTO leases SELECT randomblob(16), node, randomblob(16), position, era, version, sent, expires,"
    query += " state, document, sealed, attempt, connection, party, twin, counts, overdue, ahead FROM leases"
    query += " WHERE twin != ''"
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        world.group_service.database.do(query)


NOT_COVERED: dict[str, dict[str, Any]] = {
    "from the same subnet": {"home": Origin("b", HOMES[ALICE].party)},
    "from another key behind the same relay": {"home": Origin("b", "10.0.1.0/24")},
    "from a subnet that is not known": {"home": LOCAL},
    "with an engine that is not exact": {"engine": "transformers/bfloat16/cpu"},
    "that has an older version loaded": {"version": 9},
}


@pytest.mark.parametrize("request_", NOT_COVERED.values(), ids=NOT_COVERED)
def test_no_lease_is_covered_by_a_node(world: TwinWorld, request_: dict[str, Any]) -> None:
    world.overdue(ALICE, by=BOB)
    assert isinstance(world.ask_for(BOB, **request_), Refusal)
    assert isinstance(world.ask_for(BOB), Lease)


def test_no_lease_is_covered_by_a_node_that_is_not_proven(world: TwinWorld) -> None:
    world.prove(CAROL, groups=5)
    world.overdue(ALICE, by=BOB)
    assert isinstance(world.ask_for(CAROL), Refusal)
    assert isinstance(world.ask_for(BOB), Lease)


def test_no_lease_is_covered_before_it_is_overdue_nor_as_long_as_there_is_room(world: TwinWorld) -> None:
    lease = world.given(ALICE)
    world.now += LONG
    other = world.given(BOB)
    assert other.seeds != lease.seeds
    world.fill(BOB)
    assert world.group_service.database.value("SELECT count(*) FROM leases WHERE twin = 'hedge'") == 1


@pytest.mark.slow
def test_no_lease_is_covered_of_a_node_without_a_record_or_with_hedges_turned_off(tmp_path: Path) -> None:
    (tmp_path / "off").mkdir()
    for world in (TwinWorld(tmp_path), TwinWorld(tmp_path / "off", hedge_share=0.0)):
        world.prove(BOB)
        if not world.group_service.terms.hedge_share:
            world.prove(ALICE, groups=9)
        world.overdue(ALICE, by=BOB)
        assert isinstance(world.ask_for(BOB), Refusal)
        world.close()


def test_no_lease_of_a_served_task_is_covered(tmp_path: Path) -> None:
    reference = msgspec.structs.replace(SPEC.tasks[0], kind="served")
    world = TwinWorld(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[reference]))
    world.group_service.database.do("UPDATE leases SET overdue = 0")
    world.given(ALICE)
    assert world.group_service.database.value("SELECT count(*) FROM leases WHERE overdue NOT NULL") == 0
    world.close()


def test_a_set_counts_once_in_the_room_until_one_of_it_is_in_the_buffer(world: TwinWorld) -> None:
    lease = world.overdue(ALICE, by=BOB)
    running, undecided = on_their_way(world)
    twin = world.given(BOB)
    assert on_their_way(world) == (running, undecided)
    world.submit(group(lease), ALICE)
    assert on_their_way(world) == (running - 1, undecided + 1)
    world.submit(group(twin), BOB)
    assert on_their_way(world) == (running - 1, undecided + 1)
    world.decide_all()
    assert on_their_way(world) == (running - 1, undecided)
    assert world.group_service.buffered() == 1


def test_one_group_of_a_set_is_learned_from_and_each_is_paid_in_full(world: TwinWorld) -> None:
    lease, twin = covered(world)
    results = world.group_service.database.all("SELECT sum(rollouts) FROM task_results WHERE span = 'all'")[0][0]
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
    assert (counted.spare, counted.too_old) == (1, 0)
    row = "?, era, version, at, varied, behaviour, position, signal"
    query = f"INSERT INTO buffer SELECT {row} FROM buffer WHERE lease = ?"
    with pytest.raises(sqlite3.IntegrityError, match=r"buffer\.position"):
        world.group_service.database.do(query, (lease.id, twin.id))


def test_equal_groups_of_a_set_are_no_strike_against_either_node(world: TwinWorld) -> None:
    lease, twin = covered(world)
    mine, other = group(lease), group(twin)
    assert [one.tokens for one in mine.rollouts] == [one.tokens for one in other.rollouts]
    world.submit(mine, ALICE)
    world.submit(other, BOB)
    assert {receipt.verdict for receipt in world.decide_all()} == {"accepted"}
    assert world.group_service.strikes.of(ALICE) == world.group_service.strikes.of(BOB) == 0
    assert [world.group_service.accounts.of(node, world.now).rank for node in (ALICE, BOB)] == ["known", "proven"]


def test_a_position_is_not_given_out_again_as_long_as_a_twin_is_open(world: TwinWorld) -> None:
    database = world.group_service.database
    again = "SELECT position, attempt FROM again WHERE position IN (SELECT position FROM leases WHERE id = ?)"
    lease, twin = covered(world)
    world.now = lease.expires + 1
    world.group_service.tick(world.now)
    assert world.group_service.leases.find(lease.id).state == "expired"  # type: ignore[union-attr]
    assert world.group_service.leases.find(twin.id).state == "open"  # type: ignore[union-attr]
    assert database.all(again, (lease.id,)) == []
    world.now = twin.expires + 1
    world.group_service.tick(world.now)
    ((_, attempt),) = database.all(again, (lease.id,))
    assert attempt == 1


def test_a_position_whose_twin_was_accepted_is_never_given_out_again(world: TwinWorld) -> None:
    lease, twin = covered(world)
    world.submit(group(twin), BOB)
    world.decide_all()
    world.now = lease.expires + 1
    world.group_service.tick(world.now)
    again = "SELECT 1 FROM again WHERE position IN (SELECT position FROM leases WHERE id = ?)"
    assert world.group_service.database.all(again, (lease.id,)) == []


def test_a_refused_twin_leaves_the_position_to_the_other(world: TwinWorld) -> None:
    lease, twin = covered(world)
    world.refused(group(twin, rollouts=[]), BOB)
    world.submit(group(lease), ALICE)
    (receipt,) = world.decide_all()
    assert receipt.trainable
    again = "SELECT 1 FROM again WHERE position IN (SELECT position FROM leases WHERE id = ?)"
    assert world.group_service.database.all(again, (lease.id,)) == []


def test_a_lease_that_was_covered_counts_once_in_its_nodes_budget(world: TwinWorld) -> None:
    lease, _ = covered(world)
    assert expired(world, ALICE) == 1
    world.now = lease.expires + 1
    world.group_service.tick(world.now)
    assert expired(world, ALICE) == 1


def test_a_lease_that_was_covered_counts_although_its_group_comes_at_last(world: TwinWorld) -> None:
    lease, _ = covered(world)
    world.submit(group(lease), ALICE)
    (receipt,) = world.decide_all()
    assert receipt.verdict == "accepted"
    assert expired(world, ALICE) == 1


def test_a_node_whose_lease_was_covered_gives_up_the_next_one_that_it_would_get(world: TwinWorld) -> None:
    lease = world.given(ALICE)
    others = world.fill(BOB)
    world.now += LONG
    twin = world.given(BOB)
    refused = world.ask_for(ALICE)
    assert isinstance(refused, Refusal)
    assert refused.code == "no-room"
    world.bring([lease, twin, *others])
    refused = world.ask_for(ALICE)
    assert isinstance(refused, Refusal)
    assert refused.code == "expiries"
    assert refused.retry_after is not None
    assert refused.retry_after >= TURNAROUND
    assert isinstance(world.ask_for(ALICE), Lease)


def test_a_node_gives_up_as_many_leases_as_had_to_be_covered(tmp_path: Path) -> None:
    world = TwinWorld(tmp_path, hedge_share=0.5)
    world.prove(ALICE, BOB)
    stalled = [world.given(ALICE), world.given(ALICE)]
    others = world.fill(BOB)
    world.now += LONG
    twins = [world.given(BOB), world.given(BOB)]
    assert {one.id for one in twins}.isdisjoint(one.id for one in others)
    assert sorted(one.seeds for one in twins) == sorted(one.seeds for one in stalled)
    world.bring([*stalled, *twins, *others])
    answers = [world.ask_for(ALICE) for _ in range(3)]
    assert [isinstance(one, Refusal) and one.code for one in answers] == ["expiries", "expiries", False]
    world.close()


def test_a_restart_keeps_sets_and_what_is_overdue(tmp_path: Path) -> None:
    world = TwinWorld(tmp_path, hedge_share=0.5)
    world.prove(ALICE, groups=9)
    world.prove(BOB)
    lease, other = world.given(ALICE), world.given(BOB)
    world.fill(BOB)
    world.now += LONG
    world.refused(group(other, rollouts=[]), BOB)
    world.group_service.tick(world.now)
    world.reopen(away=3_600_000, drawn=world.drawn)
    assert world.given(BOB).seeds != lease.seeds  # there is room for one, and the share of hedges begins anew
    twin = world.given(BOB)
    assert twin.seeds == lease.seeds
    world.group_service.tick(world.now)
    world.reopen(away=3_600_000, drawn=world.drawn)
    running, _ = on_their_way(world)
    buffered = world.group_service.buffered()
    world.submit(group(lease), ALICE)
    world.submit(group(twin), BOB)
    assert [receipt.trainable for receipt in world.decide_all()] == [True, False]
    assert world.group_service.buffered() == buffered + 1
    assert on_their_way(world) == (running - 1, 0)
    check_sums(world.group_service.database)
    world.close()
