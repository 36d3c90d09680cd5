"""The law of leases applied to requests: refusals, what is measured, and a summary that agrees with run.sqlite."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from echo2.coordinator.rollouts.delivery_record import read_delivery_record
from echo2.coordinator.rollouts.lease_pacing import CHECKED_EVERY, ENDED, FEWEST, MEASURED_FOR
from echo2.engines.engine import SampleScore
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease
from echo2.protocol.refusals import sentence
from echo2.protocol.requests import Refusal
from tests.support.fleet import key, request_lease
from tests.support.group_world import ALICE, BOB, World, group, honest_scores, name, opened

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


def test_a_clock_that_was_set_back_leaves_no_negative_time_and_leases_go_on(paced: World) -> None:
    pacing = paced.group_service.leases.pacing
    before = pacing.times.steps[:]
    paced.now -= 10 * STEP
    paced.group_service.tick(paced.now)
    paced.learner_at(2)
    pacing.stepped(paced.now)
    assert pacing.times.steps == before, "the step in which the clock was set back is no measurement"
    assert paced.group_service.lease(ALICE, paced.ask(2), paced.now)
    pacing.drew(paced.now)
    assert min(pacing.times.spans + pacing.times.waits) >= 0


def test_after_an_absence_the_step_under_way_is_no_measurement(paced: World) -> None:
    pacing = paced.group_service.leases.pacing
    before = pacing.times.steps[:]
    paced.now += 10 * STEP
    paced.group_service.leases.resume(paced.now)
    pacing.stepped(paced.now)
    assert pacing.times.steps == before


@pytest.mark.slow
def test_ten_thousand_nodes_that_ask_at_once_get_the_room_and_a_time_to_come_back_at_a_cost_each_that_does_not_grow(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, pacing="fresh", batch_groups=16)
    for node in (ALICE, BOB):
        for _ in range(16):
            bring(world, node)
    train(world, 0)
    costs, codes, waits = list[int](), Counter[str](), list[int]()
    for number in range(10_000):
        statements: list[str] = []
        world.group_service.database.connection.set_trace_callback(statements.append)
        answer = request_lease(world, f"crowd {number}")
        costs.append(len(statements))
        codes[answer.code if isinstance(answer, Refusal) else ""] += 1
        if isinstance(answer, Refusal):
            waits.append(answer.retry_after)
    whole = (world.group_service.terms.staleness + 1) * 16
    world.close()
    assert 0 < codes[""] <= whole
    assert set(codes) <= {"", "later", "no-room", "new-share"}
    assert max(costs[-1000:]) <= max(costs[:1000]), "statements per request"
    assert min(waits) > 0
    assert max(waits) >= 100 * min(waits), "the more wait, the rarer each asks"


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
        assert paced.refusal(1).code == "later"
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


def late_leases(world: World, late: bytes, steps: int) -> int:
    """Let a node ask each quarter of a step, always after Alice has made all groups that lack; count its leases."""
    got, pacing = 0, world.group_service.leases.pacing
    for _ in range(steps):
        assert world.group_service.progress is not None
        step, end = world.group_service.progress.step, world.now + STEP
        while world.now < end:
            while given := leases_until_refused(world, step):
                world.now += 1_000
                for lease in given:
                    world.submit(group(lease))
                world.decide_all()
            answer = world.group_service.lease(late, world.ask(step), world.now)
            if isinstance(answer, bytes):
                got += 1
                world.now += 1_000
                world.submit(group(opened("lease", answer, Lease)), late)
                world.decide_all()
            else:
                assert answer.code == "later"
            world.now += STEP // 4
        world.learner_at(step + 1)
        pacing.stepped(world.now)
        assert world.group_service.draw() is not None
        pacing.drew(world.now)
    return got


@pytest.mark.slow
def test_a_node_that_always_asks_behind_another_gets_its_turn(paced: World) -> None:
    assert late_leases(paced, BOB, 3) == 0
    assert late_leases(paced, BOB, 12) >= 2


@pytest.mark.slow
def test_a_newcomer_that_always_asks_behind_a_known_node_gets_its_turn(paced: World) -> None:
    assert late_leases(paced, key("newcomer"), 3) == 0
    assert late_leases(paced, key("newcomer"), 12) >= 1


@pytest.mark.slow
def test_new_keys_have_no_turn_while_they_have_their_share_of_the_room(
    paced: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paced.group_service.leases.admission, "has_new_share", lambda whole, oldest: False)
    assert late_leases(paced, key("newcomer"), 15) == 0


def test_new_keys_have_their_share_of_the_room_once_they_have_so_many_groups_on_their_way(paced: World) -> None:
    bring(paced, ALICE, 1)
    admission, room = paced.group_service.leases.admission, (paced.group_service.terms.staleness + 1) * BATCH
    share = room // 10
    assert admission.has_new_share(room, (1, 0))
    assert len(idle_leases(paced, 1, share)) == share
    assert not admission.has_new_share(room, (1, 0))


# --- nodes that promise more than they bring

FORGERS = [name("forger", number, 32) for number in range(2)]


def forge(world: World, node: bytes, version: int = 2) -> None:
    """Let a new key hand in a made-up group at once, which the scorer refuses."""
    origin = Origin(node.hex()[:8], f"10.1.{FORGERS.index(node)}.0/24")
    answer = world.group_service.lease(node, world.ask(version), world.now, origin)
    assert isinstance(answer, bytes), answer
    lease: Lease = opened("lease", answer, Lease)
    world.now += 5
    world.submit(group(lease), node)
    for waiting in world.group_service.undecided(10):
        wrong = [SampleScore(logprobs=[-0.5] * n, margins=[9.0] * n) for n in (4, 4)]
        assert world.decide(waiting, wrong).verdict == "refused"
    world.group_service.lease(node, world.ask(version), world.now, origin)


def wait_for_groups(world: World) -> None:
    """Let the learner end its second step, and wait."""
    world.now += STEP
    world.learner_at(2)
    world.group_service.leases.pacing.stepped(world.now)


def test_made_up_groups_of_free_keys_promise_the_law_nothing(paced: World) -> None:
    """Each takes no time, and would count as hundreds of groups a second that the next version brings."""
    pacing = paced.group_service.leases.pacing
    wait_for_groups(paced)
    paced.lease(ALICE, 2)
    supply = pacing.supply
    for node in FORGERS:
        forge(paced, node)
    assert pacing.supply == pytest.approx(supply)
    pacing.anew()
    paced.group_service.lease(ALICE, paced.ask(2), paced.now)
    assert pacing.supply == pytest.approx(supply)


@pytest.mark.slow
def test_honest_nodes_get_as_many_leases_beside_forgers_as_without(tmp_path: Path) -> None:
    """They got 15 instead of 46 beside two of them: less than a batch of 16."""
    leases = []
    for forgers in (0, 2):
        (folder := tmp_path / str(forgers)).mkdir()
        world = World(folder, pacing="fresh", batch_groups=16)
        honest = [name("honest", number, 32) for number in range(4)]
        for node in 8 * honest:
            bring(world, node, ms=4_000)
        train(world, 0)
        world.now += STEP // 2
        for node in FORGERS[:forgers]:
            forge(world, node, version=1)
        leases.append(sum(len(leases_until_refused(world, 1, node)) for node in honest))
        assert world.refusal(1, honest[0]).code == "no-room"
        world.close()
    assert leases == [3 * 16, 3 * 16 - 2], "each forger has a lease"


def test_one_group_at_the_last_second_does_not_make_all_turnarounds_uncertain(tmp_path: Path) -> None:
    world = World(tmp_path, pacing="fresh", batch_groups=4 * BATCH)
    pacing = world.group_service.leases.pacing
    for _ in range(FEWEST + 4):
        bring(world, ALICE)
    assert pacing.spread <= 0.1
    lease = world.lease(ALICE)
    world.now = lease.expires - 20
    world.submit(group(lease), ALICE)
    assert 0.1 < pacing.spread <= 1.0
    world.close()


def test_a_node_that_pauses_for_its_expired_leases_is_no_supply_however_often_it_asks(paced: World) -> None:
    pacing = paced.group_service.leases.pacing
    wait_for_groups(paced)
    taken = [paced.lease(BOB, 2) for _ in range(6)]
    paced.now = max(one.expires for one in taken) + 1
    paced.group_service.tick(paced.now)
    for _ in range(6):
        assert paced.refusal(2, BOB).code == "expiries"
        paced.now += 5_000
        assert paced.group_service.lease(ALICE, paced.ask(2), paced.now)
    assert pacing.supply == pytest.approx(read_delivery_record(paced.group_service.database, ALICE).rate, rel=0.01)


def test_a_flood_of_leases_that_free_keys_give_back_changes_nothing_for_the_others(paced: World) -> None:
    pacing = paced.group_service.leases.pacing
    wait_for_groups(paced)
    kept = list(pacing.times.kept)
    for number in range(ENDED):
        origin = Origin(f"line {number}", f"10.2.{number}.0/24")
        node = name("returner", number, 32)
        answer = paced.group_service.lease(node, paced.ask(2), paced.now, origin)
        assert isinstance(answer, bytes), answer
        paced.group_service.verdicts.end_early([opened("lease", answer, Lease).id], "declined", paced.now)
    paced.now += 2 * MEASURED_FOR
    assert (pacing.times.kept, pacing.new_chance(paced.now)) == (kept, 0.0)
    assert len(leases_until_refused(paced, 2)) >= BATCH
