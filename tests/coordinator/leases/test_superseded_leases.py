"""Leases that can no longer be drawn are recalled, where their nodes have not begun them."""

from pathlib import Path

import pytest

from echo2.coordinator.leases.delivery_record import read_delivery_record
from echo2.coordinator.leases.expiry_budgets import EXPIRY_PARTS, FREE_EXPIRIES, RETURN_PARTS
from echo2.coordinator.leases.superseded_leases import (
    VersionLoad,
    WaitingLease,
    WaitingReports,
    any_beyond,
    to_recall,
)
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.nodes import nodes_report
from echo2.p2p.identity import peer_id
from echo2.protocol.leases import Lease, LeaseReport
from tests.support.group_world import ALICE, BOB, World, group, name, opened
from tests.support.sqlite_cost import statements


def waiting(*versions: int) -> list[WaitingLease]:
    return [WaitingLease(version, sent, bytes([sent])) for sent, version in enumerate(versions)]


@pytest.mark.parametrize(
    ("loads", "step", "left", "recalled"),
    [
        pytest.param({0: 12}, 0, [0, 0], [], id="none while all can be drawn"),
        pytest.param({0: 8, 1: 4}, 2, [0, 0, 0, 0, 0, 0], [0, 1, 2, 3], id="at step 2 one batch of version 0 is left"),
        pytest.param({0: 8}, 2, [0, 0], [0, 1], id="no more than wait"),
        pytest.param({0: 3, 1: 2}, 3, [1, 0, 0], [1, 2], id="all of a version that is too old, the newer one stays"),
        pytest.param({1: 4, 2: 6}, 3, [2, 2, 1], [2, 0], id="the oldest version first, then as they were sent"),
    ],
)
def test_the_leases_to_recall(loads: dict[int, int], step: int, left: list[int], recalled: list[int]) -> None:
    """With S = 2 and batches of 4."""
    loaded = [VersionLoad(*load) for load in loads.items()]
    chosen = [one.lease for one in to_recall(loaded, waiting(*left), 2, step, 4)]
    assert chosen == [bytes([number]) for number in recalled]
    assert any_beyond(loaded, 2, step, 4) == bool(recalled)


def test_the_last_report_of_a_node_counts_and_an_empty_one_is_forgotten() -> None:
    reports = WaitingReports()
    reports.note(ALICE, [b"1", b"2"])
    reports.note(ALICE, [b"2"])
    reports.note(BOB, [b"3"])
    reports.note(BOB, [])
    assert dict(reports.by_node()) == {ALICE: {b"2"}}


def crowded(folder: Path) -> tuple[World, list[Lease]]:
    """Return a run at step 2 with six leases of version 0, of which one batch of four can still be drawn."""
    world = World(folder, batch_groups=4)
    leases = []
    for _ in range(6):
        leases.append(world.lease())
        world.now += 10
    for step in (1, 2):
        world.learner_at(step)
    return world, leases


def state(world: World, lease: Lease) -> str:
    return str(world.group_service.database.value("SELECT state FROM leases WHERE id = ?", (lease.id,)))


def test_a_publication_recalls_the_leases_that_are_not_begun_and_counts_them_against_nobody(tmp_path: Path) -> None:
    world, leases = crowded(tmp_path)
    service, ids = world.group_service, [one.id for one in leases]
    assert service.take_report(ALICE, LeaseReport(waiting=ids[2:]), world.now) == []
    assert service.recall(world.now) == 2
    assert service.recall(world.now) == 0, "those that are recalled already count no longer"
    assert {state(world, one) for one in leases} == {"open"}
    assert service.take_report(ALICE, LeaseReport(waiting=ids[2:]), world.now) == ids[2:4]
    assert service.take_report(ALICE, LeaseReport(waiting=ids[4:], returned=ids[2:4]), world.now) == []
    assert [state(world, one) for one in leases] == ["open"] * 2 + ["returned"] * 2 + ["open"] * 2
    assert service.database.value("SELECT count(*) FROM budgets") == 0
    ends = [row[0] for row in service.database.all("SELECT document FROM ends")]
    assert all(b"superseded" in document for document in ends)
    assert len(ends) == 2
    assert service.recall(world.now) == 0


@pytest.mark.parametrize("reported", [False, True])
def test_a_lease_that_is_begun_also_behind_its_report_is_finished_checked_and_credited(
    tmp_path: Path, reported: bool
) -> None:
    """Before, a publication ended one that was begun behind a report, and the group was refused as late."""
    world, leases = crowded(tmp_path)
    if reported:
        world.group_service.take_report(ALICE, LeaseReport(waiting=[one.id for one in leases]), world.now)
    else:
        world.learner_at(3)
    assert world.group_service.recall(world.now) == (2 if reported else 0)
    for lease in leases:
        world.submit(group(lease))
    assert {receipt.verdict for receipt in world.decide_all()} == {"accepted"}


def test_the_node_hears_which_of_its_waiting_leases_it_must_not_begin(tmp_path: Path) -> None:
    world, leases = crowded(tmp_path)
    service, ids = world.group_service, [one.id for one in leases]
    service.take_report(ALICE, LeaseReport(waiting=ids), world.now)
    service.recall(world.now)
    assert service.take_report(ALICE, LeaseReport(waiting=ids[1:]), world.now) == ids[1:2]
    assert service.take_report(BOB, LeaseReport(waiting=ids[4:]), world.now) == ids[4:]
    world.now = leases[0].expires + 1
    world.group_service.tick(world.now)
    assert world.refused(group(leases[0])).code == "late"
    assert service.strikes.of(ALICE) == 0


def test_the_prompt_of_an_ended_lease_goes_out_again(tmp_path: Path) -> None:
    world, leases = crowded(tmp_path)
    world.group_service.take_report(ALICE, LeaseReport(waiting=[leases[0].id]), world.now)
    world.group_service.recall(world.now)
    world.group_service.take_report(ALICE, LeaseReport(returned=[leases[0].id]), world.now)
    again = world.lease(BOB, version=2)
    assert again.index == leases[0].index
    assert again.seeds != leases[0].seeds


def test_leases_given_back_are_no_expiries_and_make_room_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=4, per_node=6)
    world.accepted()
    leases = [world.lease() for _ in range(6)]
    assert world.refusal().code == "too-many-leases"
    world.group_service.take_report(ALICE, LeaseReport(returned=[one.id for one in leases[1:5]]), world.now)
    assert [state(world, one) for one in leases] == ["open"] + ["returned"] * 4 + ["open"]
    assert world.group_service.database.value("SELECT expired FROM budgets") == 4 * RETURN_PARTS
    assert run_metrics.counts(world.group_service.database, world.now).expired == 0
    report = nodes_report.describe_key(world.path, peer_id(ALICE), world.now)
    assert (report.codes["returned"], [one.code for one in report.last].count("returned")) == (4, 4)
    world.submit(group(leases[0]))
    world.group_service.take_report(ALICE, LeaseReport(returned=[leases[5].id]), world.now)
    given_back = 5
    while isinstance(again := world.group_service.lease(ALICE, world.ask(), world.now), bytes):
        lease = opened("lease", again, Lease)
        world.group_service.take_report(ALICE, LeaseReport(returned=[lease.id]), world.now)
        given_back += 1
    assert again.code == "expiries", "a node that only takes leases and gives them back pauses"
    assert EXPIRY_PARTS * FREE_EXPIRIES < given_back <= EXPIRY_PARTS * 7
    assert world.lease(BOB).version == 0


@pytest.mark.parametrize(("share", "parts"), [(0.1, 1), (0.5, 4), (0.99, 7)])
def test_a_lease_given_back_late_counts_as_much_as_it_was_held(tmp_path: Path, share: float, parts: int) -> None:
    """Before, a key that gave each lease back at its last moment held one for four times as long as by expiries."""
    world = World(tmp_path)
    world.accepted()
    lease = world.lease()
    world.now += int(share * (lease.expires - lease.sent))
    world.group_service.take_report(ALICE, LeaseReport(returned=[lease.id]), world.now)
    assert world.group_service.database.value("SELECT expired FROM budgets") == parts


def test_a_node_that_begins_nothing_and_waits_for_each_recall_has_its_leases_counted(tmp_path: Path) -> None:
    """Before, a known key took 4,800 leases an hour so, at a version per 2 s, and each had a ledger entry for good."""
    world, leases = crowded(tmp_path)
    service, ids = world.group_service, [one.id for one in leases]
    service.accounts.remark(ALICE, "node.vouched", "tested", world.now)
    service.take_report(ALICE, LeaseReport(waiting=ids), world.now)
    assert service.recall(world.now) == 2
    service.take_report(ALICE, LeaseReport(waiting=ids[2:], returned=ids[:2]), world.now)
    assert service.database.value("SELECT expired FROM budgets") == 2 * RETURN_PARTS
    world.submit(group(leases[2]))
    world.learner_at(3)
    service.take_report(ALICE, LeaseReport(waiting=ids[3:]), world.now)
    assert service.recall(world.now) == 3
    service.take_report(ALICE, LeaseReport(returned=ids[3:]), world.now)
    assert service.database.value("SELECT expired FROM budgets") == 2 * RETURN_PARTS, (
        "these waited behind a group that it handed in"
    )
    assert [entry.kind for entry in service.ledger.entries()].count("lease.expired") == 2
    assert service.database.value("SELECT count(*) FROM ends") == 3, "superseded leases share an entry"


@pytest.mark.slow
def test_any_number_of_leases_may_be_recalled(tmp_path: Path) -> None:
    """Before, SQLite's bound on parameters ended the publication."""
    world, leases = crowded(tmp_path)
    many = [number.to_bytes(16, "big") for number in range(300_000)]
    assert world.group_service.leases.still_open([*many, leases[0].id]) == {leases[0].id}


@pytest.mark.parametrize("step", [2, 3])
def test_a_publication_asks_for_the_waiting_leases_of_all_nodes_at_once(tmp_path: Path, step: int) -> None:
    """A query per node would hold up the learner's next step: for a tenth of a second beside 4,096 nodes. At step 2 all
    groups can be drawn; at step 3 those of version 0 cannot."""
    world = World(tmp_path, batch_groups=200, per_node=2)
    nodes = [name("node", number, 32) for number in range(100)]
    for node in nodes:
        leases = [world.lease(node), world.lease(node)]
        world.group_service.take_report(node, LeaseReport(waiting=[leases[1].id], returned=[]), world.now)
    for number in range(1, step + 1):
        world.learner_at(number)
    with statements(world.group_service.database) as run:
        recalled = world.group_service.recall(world.now)
    assert recalled == (0 if step == 2 else 100)
    assert len(run) <= 5, len(run)


def test_a_report_gives_back_only_open_leases_of_its_node(tmp_path: Path) -> None:
    world, leases = crowded(tmp_path)
    world.submit(group(leases[0]))
    theirs = world.lease(BOB, version=2)
    world.group_service.take_report(ALICE, LeaseReport(returned=[leases[0].id, theirs.id, bytes(16)]), world.now)
    assert [state(world, one) for one in (leases[0], theirs)] == ["received", "open"]
    assert {state(world, one) for one in leases[1:]} == {"open"}


@pytest.mark.parametrize("in_order", [True, False])
def test_a_node_whose_lease_was_superseded_stays_reliable_if_it_begins_leases_in_order(
    tmp_path: Path, in_order: bool
) -> None:
    """Bob's lease waits until it is superseded. Then Alice's prompt is returned, and Bob is the next to ask."""
    world, leases = crowded(tmp_path)
    service, waiting_one = world.group_service, world.lease(BOB, version=2)
    world.now += 10
    later = world.lease(BOB, version=2)
    steps = [
        lambda: service.verdicts.expiries.end_early([waiting_one.id], "superseded", world.now),
        lambda: world.submit(group(later), BOB),
    ]
    for step in steps if in_order else reversed(steps):
        step()
    world.decide_all()
    service.take_report(ALICE, LeaseReport(returned=[leases[0].id]), world.now)
    assert (world.lease(BOB, version=2).index == leases[0].index) == in_order


def test_a_superseded_lease_is_no_time_in_which_its_node_had_a_lease(tmp_path: Path) -> None:
    world, leases = crowded(tmp_path)
    for lease in leases[:-1]:
        world.submit(group(lease))
    database = world.group_service.database
    before = read_delivery_record(database, ALICE)
    world.now += 60_000
    world.group_service.verdicts.expiries.end_early([leases[-1].id], "superseded", world.now)
    assert read_delivery_record(database, ALICE) == before
    database.do("DELETE FROM superseded")
    assert read_delivery_record(database, ALICE).rate < before.rate
