"""The bound on the bytes of stored rollouts: which groups give way, which stay, and what a kill leaves."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.verdicts import token_storage
from echo2.coordinator.verdicts.stored_rollouts import Wanted, list_groups
from echo2.coordinator.verdicts.token_storage import DELETED_LEASES_SLICE, stored_bytes
from echo2.engines.engine import SampleScore
from echo2.protocol.leases import Lease
from tests.support.audit_world import AuditWorld
from tests.support.evidence_world import Bfloat16World
from tests.support.group_world import ALICE, BOB, SPEC, TEXT, World, group, honest_scores
from tests.support.ledger_sums import check_sums
from tests.support.paths import ROOT

HOUR = 3_600_000
LONG_PAST = 10_000
"""A step at which no group here is of a version that is leased."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path, batch_groups=100)
    yield opened
    check_sums(opened.group_service.database)
    assert opened.group_service.ledger.verify().entries > 0


def make_room(world: World, most: int, step: int = LONG_PAST) -> int:
    """Delete groups as the coordinator's ticks do, until none gives way; return how many went."""
    gone = 0
    while number := world.group_service.tokens.make_room(most, step, 1, SPEC.staleness):
        gone += number
    return gone


def accepted_later(world: World) -> bytes:
    """Have a group accepted after all leases have ended; return its lease."""
    world.now += HOUR
    return world.accepted().id


def stored(world: World) -> list[bytes]:
    """Return the leases whose groups are stored, in the order of receipt."""
    rows = world.group_service.database.all("SELECT lease FROM submissions WHERE payload IS NOT NULL ORDER BY at")
    return [lease for (lease,) in rows]


def refused_by_pass(world: World, node: bytes) -> Lease:
    """Have the scorer refuse a node's group."""
    lease = world.lease(node)
    world.submit(group(lease), node)
    (waiting,) = world.group_service.list_undecided()
    scores = [SampleScore(logprobs=one.logprobs, margins=[9.0] * 4) for one in honest_scores(waiting.submission)]
    assert world.decide(waiting, scores).verdict == "refused"
    return lease


def test_the_oldest_groups_give_way_until_the_bound_holds(world: World) -> None:
    leases = [accepted_later(world) for _ in range(5)]
    each = stored_bytes(world.group_service.database) // 5
    assert make_room(world, 5 * each) == 0
    assert make_room(world, 3 * each) == 2
    assert stored(world) == leases[2:]
    shown = list_groups(world.group_service.database, TEXT, Wanted())
    assert [one.lease for one in shown] == [lease.hex() for lease in reversed(leases[2:])]


def test_a_bound_lowered_in_mid_run_takes_older_groups_and_one_raised_takes_none(world: World) -> None:
    for _ in range(4):
        world.accepted()
    each = stored_bytes(world.group_service.database) // 4
    assert [make_room(world, bound * each) for bound in (4, 2, 3, 1)] == [0, 2, 0, 1]
    world.accepted()
    assert make_room(world, 3 * each) == 0


def test_a_bound_below_one_group_leaves_what_is_needed_alone(world: World) -> None:
    for _ in range(3):
        world.accepted()
    world.learner_at(5)
    fresh = world.accepted(BOB, version=5).id
    waiting = world.lease(BOB, version=5)
    world.submit(group(waiting), BOB)
    assert make_room(world, 1, step=5) == 3
    assert stored(world) == [fresh, waiting.id]
    (receipt,) = world.decide_all()
    assert receipt.verdict == "accepted", "its verdict comes all the same"
    batch = world.group_service.buffer.draw(5, 1, 2)
    assert [one.id for one in batch or []] == [fresh, waiting.id], "and the learner has its batch"


def test_many_groups_go_in_slices(world: World) -> None:
    for _ in range(DELETED_LEASES_SLICE + 3):
        world.accepted()
    tokens = world.group_service.tokens
    gone = [tokens.make_room(0, LONG_PAST, 1, SPEC.staleness) for _ in range(3)]
    assert gone == [DELETED_LEASES_SLICE, 3, 0]


def test_leases_that_return_nothing_are_looked_at_a_page_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_storage, "LOOKED_AT_ONCE", 2)
    lost = 6
    for _ in range(lost):
        world.lease()
        world.now += 1
    world.now += HOUR
    while world.group_service.tick(world.now):
        pass
    last = accepted_later(world)
    gone = [world.group_service.tokens.make_room(0, LONG_PAST, 1, SPEC.staleness) for _ in range(lost // 2 + 1)]
    assert gone == [0] * (lost // 2) + [1], "one page at each call, however many leases ended without a group"
    assert last not in stored(world)


def test_other_tokens_of_turns_give_way_too(world: World) -> None:
    database, tokens = world.group_service.database, world.group_service.tokens
    with database.transaction():
        tokens.other_bytes(world.lease().id, bytes(32), bytes(1000), world.now)
    world.now += HOUR
    while world.group_service.tick(world.now):
        pass
    assert make_room(world, 999) == 1
    assert (stored_bytes(database), make_room(world, 0)) == (0, 0)
    assert database.value("SELECT count(*) FROM refused_tokens") == 0
    assert database.value("SELECT count(*) FROM leases") == 1, "a group for it is late, not unknown"
    accepted_later(world)


def test_groups_behind_many_that_are_needed_are_reached(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_storage, "LOOKED_AT_ONCE", 2)
    world.accepted()
    kept = [refused_by_pass(world, ALICE).id for _ in range(2)]
    last = accepted_later(world)
    gone = [world.group_service.tokens.make_room(0, LONG_PAST, 1, SPEC.staleness) for _ in range(6)]
    assert sum(gone) == 2
    assert last not in stored(world)
    assert stored(world) == kept


def test_a_refused_group_stays_while_its_node_may_appeal_or_its_check_waits(world: World) -> None:
    world.accepted(ALICE)
    lease = refused_by_pass(world, ALICE)
    assert make_room(world, 0) == 1, "the accepted one"
    assert world.group_service.reviews.appeal(ALICE, lease.id, world.now) is None
    assert make_room(world, 0) == 0
    (waiting,) = world.group_service.reviews.of(lease.id)
    assert world.group_service.reviews.group(waiting) is not None
    world.group_service.lose_review(waiting, "its version is gone", world.now)
    assert make_room(world, 0) == 1, "a lease is appealed once"


def test_refused_groups_without_an_appeal_give_way(world: World) -> None:
    """Keys are free: those without accepted work keep nothing."""
    free = refused_by_pass(world, BOB)
    world.accepted(ALICE)
    broken = world.lease(ALICE)
    world.refused(group(broken, rollouts=[]), ALICE)
    assert {free.id, broken.id} <= set(stored(world))
    assert make_room(world, 0) == 3
    assert world.group_service.database.all("SELECT * FROM refused_tokens") == []


def test_a_group_that_another_node_generates_again_stays_until_both_are_compared(tmp_path: Path) -> None:
    world = AuditWorld(tmp_path)
    world.prove(ALICE, BOB)
    first, audit = world.pair()
    world.answered(first)
    make_room(world, 0)
    assert stored(world) == [first.id]
    assert world.answered(audit).verdict == "accepted"
    assert world.view.agreed == 1
    assert make_room(world, 0) == 2


def test_a_day_in_quarantine_is_judged_by_all_its_groups(tmp_path: Path) -> None:
    bench = Bfloat16World(tmp_path)
    bench.open()
    codes = bench.until("quarantine")
    assert make_room(bench.world, 0) == codes.count("ok")
    assert len(stored(bench.world)) == codes.count("quarantine")
    assert bench.end_day() == ["quarantine"], "its check is made"
    assert make_room(bench.world, 0) == codes.count("quarantine")


@pytest.mark.parametrize("letters", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_answers_of_a_megabyte_leave_the_file_below_its_bound(tmp_path: Path, letters: int) -> None:
    """Deleted groups leave their pages to newer ones: run.sqlite grows no further."""
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, limit=1 << 20), batch_groups=100)
    database, sizes = world.group_service.database, list[int]()
    for number in range(8):
        lease = world.lease()
        world.submit(group(lease, [str(number) * letters, "1"]))
        world.decide_all()
        sizes.append(stored_bytes(database))
        make_room(world, 3 * sizes[0] + 1_000)
    pages = database.value("PRAGMA page_count") * database.value("PRAGMA page_size")
    assert max(sizes) <= 4 * sizes[0] + 1_000, "a group is stored before another gives way"
    assert len(stored(world)) == 3
    assert pages < 4 * sizes[0] + 1_000_000
    check_sums(database)


KILLED = """
import os, signal, sys
from pathlib import Path
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.token_storage import TokenStorage
left = int(sys.argv[2])
def die(statement):
    global left
    left -= 1
    if left == 0 or statement == "COMMIT":
        os.kill(os.getpid(), signal.SIGKILL)
database = Database.open(Path(sys.argv[1]))
database.connection.set_trace_callback(die)
TokenStorage(database).make_room(0, 10_000, 1, 2)
"""


@pytest.mark.parametrize("statements", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (6, 12, 24))])
def test_a_kill_before_the_commit_leaves_every_group_whole(world: World, statements: int) -> None:
    """`statements`: number of the one before which the kill comes; 0: the commit."""
    leases = [world.accepted().id for _ in range(3)]
    database = world.group_service.database
    before = database.all("SELECT lease, payload, scores FROM submissions"), stored_bytes(database)
    world.close()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(world.path), str(statements)], env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    world.reopen(drawn=[])
    database = world.group_service.database
    assert before == (database.all("SELECT lease, payload, scores FROM submissions"), stored_bytes(database))
    assert stored(world) == leases
    assert make_room(world, 0) == 3
