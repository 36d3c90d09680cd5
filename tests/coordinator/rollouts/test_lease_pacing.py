"""The law of leases applied to requests: refusals, what is measured, and a summary that agrees with run.sqlite."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coordinator.rollouts.lease_pacing import CHECKED_EVERY
from engines.engine import SampleScore
from p2p.limits.origin import Origin
from protocol.leases import Lease
from protocol.refusals import sentence
from tests.support.fleet import key
from tests.support.group_world import ALICE, BOB, World, group, honest_scores, opened

STEP = 60_000
BATCH = 4


@pytest.fixture
def paced(tmp_path: Path) -> Iterator[World]:
    """A run in its second step, with two nodes that bring a group in a second and have nothing to do."""
    world = World(tmp_path, pacing="fresh", batch_groups=BATCH)
    for node in (ALICE, BOB):
        for _ in range(BATCH):
            bring(world, node)
    train(world, 0)
    world.group_service.leases.pacing._new_ends.clear()  # theirs, as long ago
    yield world
    world.close()


def bring(world: World, node: bytes, version: int = 0, ms: int = 1_000) -> None:
    """Let a node lease a group, and bring it after so many milliseconds."""
    lease = world.lease(node, version)
    world.now += ms
    world.submit(group(lease), node)
    world.decide_all()


def train(world: World, step: int, ms: int = STEP) -> None:
    """Let the learner make a step, and begin the next one."""
    pacing = world.group_service.leases.pacing
    assert world.group_service.draw() is not None
    pacing.drew(world.now)
    world.now += ms
    world.learner_at(step + 1)
    pacing.stepped(world.now)
    assert world.group_service.draw() is not None
    pacing.drew(world.now)


def leases_until_refused(world: World, version: int, node: bytes = ALICE) -> list[Lease]:
    """Let a node ask until it gets no lease."""
    given: list[Lease] = []
    while isinstance(answer := world.group_service.lease(node, world.ask(version), world.now), bytes):
        given.append(world.group_service.leases.find(last_lease(world)).lease)  # type: ignore[union-attr]
        assert answer
    return given


def last_lease(world: World) -> bytes:
    lease: bytes = world.group_service.database.value("SELECT id FROM leases ORDER BY rowid DESC LIMIT 1")
    return lease


def test_quick_nodes_are_told_to_wait_for_the_next_version_long_before_the_room_is_full(paced: World) -> None:
    given = leases_until_refused(paced, 1)
    refused = paced.refusal(1)
    assert refused.code == "later"
    assert refused.sentence == sentence("later", version=1, step=1)
    assert refused.retry_after == STEP // 4
    assert len(given) <= 2 * BATCH
    room = (paced.group_service.terms.staleness + 1) * BATCH
    assert len(given) < room


def test_the_next_version_gets_the_leases_that_the_last_one_did_not(paced: World) -> None:
    for lease in leases_until_refused(paced, 1):
        paced.now += 1_000
        paced.submit(group(lease))
    paced.decide_all()
    paced.now += STEP
    paced.learner_at(2)
    paced.group_service.leases.pacing.stepped(paced.now)
    assert isinstance(paced.group_service.lease(ALICE, paced.ask(2), paced.now), bytes)


def test_while_the_learner_waits_a_node_gets_a_lease(paced: World) -> None:
    paced.now += STEP
    paced.learner_at(2)
    paced.group_service.leases.pacing.stepped(paced.now)
    given = leases_until_refused(paced, 2)
    assert len(given) >= BATCH


def test_before_the_first_step_room_alone_paces(tmp_path: Path) -> None:
    world = World(tmp_path, pacing="fresh", batch_groups=BATCH)
    given = leases_until_refused(world, 0)
    assert len(given) == (world.group_service.terms.staleness + 1) * BATCH
    assert world.refusal().code == "no-room"
    world.close()


def test_with_the_setting_room_no_node_is_told_to_wait_for_a_version(tmp_path: Path) -> None:
    world = World(tmp_path, pacing="room", batch_groups=BATCH)
    for _ in range(2 * BATCH):
        bring(world, ALICE)
    train(world, 0)
    leases_until_refused(world, 1)
    assert world.refusal(1).code in ("no-room", "rate-share")
    world.close()


def test_the_learners_times_survive_a_restart(paced: World) -> None:
    times = paced.group_service.leases.pacing.times
    assert times.steps == [STEP]
    paced.reopen(away=1_000)
    stored = paced.group_service.leases.pacing.times
    assert stored.steps == [STEP]
    assert stored.waits == times.waits[: len(stored.waits)]


def test_a_step_that_was_lost_is_no_measurement(paced: World) -> None:
    pacing = paced.group_service.leases.pacing
    pacing.stopped()
    pacing.stepped(paced.now + 5)
    pacing.drew(paced.now + 10)
    pacing.stepped(paced.now + STEP)
    assert pacing.times.steps == [STEP, STEP - 10]


def test_the_summary_agrees_with_the_store_whatever_happens_to_leases(paced: World) -> None:
    given = leases_until_refused(paced, 1)
    table = paced.group_service.leases
    with capture_logs() as logs:
        with paced.group_service.database.transaction():
            table.extend(given[0].id, 3_000)
        paced.submit(group(given[1]))
        paced.decide_all()
        paced.now += CHECKED_EVERY
        assert paced.refusal(1).code == "later" or given
        paced.now = given[-1].expires + 10_000
        paced.group_service.tick(paced.now)
        paced.group_service.lease(ALICE, paced.ask(1), paced.now)
        table.resume(paced.now + 5_000)
        paced.group_service.lease(BOB, paced.ask(1), paced.now + 5_000)
        paced.group_service.lease(BOB, paced.ask(1), paced.now + 5_000 + CHECKED_EVERY)
    assert [one for one in logs if one["log_level"] == "error"] == []


def test_a_summary_that_differs_from_the_store_is_a_fault_in_the_log_and_is_derived_anew(paced: World) -> None:
    (lease, *_) = leases_until_refused(paced, 1)
    paced.group_service.database.do("UPDATE leases SET state = 'expired' WHERE id = ?", (lease.id,))
    paced.now += CHECKED_EVERY
    with capture_logs() as logs:
        paced.group_service.lease(BOB, paced.ask(1), paced.now)
        paced.now += CHECKED_EVERY
        paced.group_service.lease(BOB, paced.ask(1), paced.now)
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["summary of leases is wrong"]


def test_a_new_era_begins_with_a_summary_of_its_own(paced: World) -> None:
    leases_until_refused(paced, 1)
    paced.learner_at(1, era=2)
    answer = paced.group_service.lease(ALICE, paced.ask(1, era=2), paced.now)
    assert isinstance(answer, bytes)


def newcomer(number: int) -> tuple[bytes, Origin]:
    """A key that was never seen, and its home."""
    return key("newcomer", number), Origin(f"c{number}", f"10.{number}.0.0/24")


def idle_leases(world: World, version: int, keys: int) -> list[Lease]:
    """Let new keys of many parties take leases, as far as they get them."""
    given = []
    for number in range(keys):
        node, origin = newcomer(number)
        answer = world.group_service.lease(node, world.ask(version), world.now, origin)
        if isinstance(answer, bytes):
            given.append(opened("lease", answer, Lease))
    return given


def test_known_nodes_wait_for_no_group_of_new_keys_once_those_are_overdue(paced: World) -> None:
    pacing = paced.group_service.leases.pacing
    bring(paced, ALICE, 1)
    idle = idle_leases(paced, 1, 20)
    assert len(idle) >= 4
    assert pacing.new_chance(paced.now) == 1.0
    paced.now += 4_000  # a known node takes a second
    assert pacing.new_chance(paced.now) == 0.0
    kept = list(pacing.times.kept)
    given = leases_until_refused(paced, 1)
    assert len(given) >= BATCH
    paced.submit(group(given[0]))
    paced.decide_all()
    paced.now = max(lease.expires for lease in [*idle, *given]) + 1
    while paced.group_service.tick(paced.now):
        pass
    assert pacing.new_chance(paced.now) == 0.0
    assert pacing.times.kept == [*kept, True, *[False] * (len(given) - 1)], "those of new keys are not among them"


def test_groups_that_new_keys_make_up_change_no_measurement(paced: World) -> None:
    pacing = paced.group_service.leases.pacing
    before = list(pacing.times.kept), list(pacing._ratios)
    for lease in idle_leases(paced, 1, 8):
        paced.submit(group(lease), lease.node)
        (waiting,) = paced.group_service.undecided()
        wrong = [SampleScore(logprobs=[-0.5] * len(one.logprobs), margins=[2.0] * len(one.logprobs)) for one in
                 honest_scores(waiting.submission)]  # fmt: skip
        assert paced.decide(waiting, wrong).verdict == "refused"
    assert (list(pacing.times.kept), list(pacing._ratios)) == before
    assert pacing.new_chance(paced.now) == 0.0


def test_newcomers_that_bring_groups_are_counted_on(paced: World) -> None:
    pacing = paced.group_service.leases.pacing
    for lease in idle_leases(paced, 1, 4):
        paced.submit(group(lease), lease.node)
        paced.decide_all()
    assert pacing.new_chance(paced.now) == 1.0


def test_new_keys_that_bring_nothing_get_the_room_at_most(paced: World) -> None:
    first = idle_leases(paced, 1, 40)
    paced.now += 4_000
    again = idle_leases(paced, 1, 80)
    room = (paced.group_service.terms.staleness + 1) * BATCH
    assert len(first) + len(again) <= room


def test_known_nodes_get_the_room_back_that_was_lent_to_keys_which_bring_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, pacing="fresh", batch_groups=BATCH, least_ms=600_000, first_ms=600_000)
    for _ in range(BATCH):
        bring(world, ALICE)
    for _ in range(BATCH):
        bring(world, BOB)
    train(world, 0)
    world.group_service.leases.pacing._new_ends.clear()
    bring(world, ALICE, 1)
    idle = idle_leases(world, 1, 40)
    assert len(idle) >= BATCH
    refused = world.refusal(1).code
    world.now += 4_000
    given = leases_until_refused(world, 1)
    assert (refused, len(given) >= BATCH) == ("later", True)
    world.close()
