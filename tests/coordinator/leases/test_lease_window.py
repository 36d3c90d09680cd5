"""The window of leases: what each draw shows, and requests that meet it."""

from collections import Counter
from pathlib import Path

import pytest

from echo2.coordinator.leases.lease_terms import InFlight
from echo2.coordinator.leases.lease_window import (
    LEAST_DRAWS,
    REMEMBERED_DRAWS,
    WINDOW_MARGIN_BATCHES,
    CompletedBatch,
    LastDraws,
    LeaseWindow,
)
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.fleet import key, request_lease
from tests.support.group_world import ALICE, BOB, World, group, opened

STEP = 60_000
BATCH = 4
S = 4


def drawn(window: LeaseWindow, ahead: int, waited: int, now: int = 0, took: int = STEP // 2) -> int:
    """Let the learner draw a batch that waited for it so many ms, or for which it waited, and make a step; return when
    it has ended. `took`: ms from the lease that completed the batch until that."""
    at = now - waited
    window.draw(CompletedBatch(ahead, at - took, at), max(now, at))
    end = max(now, at) + STEP
    window.end_step(end)
    return end


def measured(*windows: float) -> LeaseWindow:
    return LeaseWindow(S, BATCH, LastDraws(windows=list(windows), steps=[float(STEP)]))


def settled(window: float) -> LeaseWindow:
    """A window that was enough for each of the draws that count."""
    return measured(*[window] * REMEMBERED_DRAWS)


def test_before_the_first_draw_the_window_is_the_room() -> None:
    window = LeaseWindow(S, BATCH)
    assert window.batches == S + 1
    assert window.groups(0, behind=False) == (S + 1) * BATCH


def test_a_draw_shows_the_window_of_the_lease_that_completed_it_less_the_time_that_the_batch_waited() -> None:
    window = LeaseWindow(S, BATCH)
    now = drawn(window, ahead=20, waited=STEP)
    assert window.last.windows == [], "no step is measured yet"
    now = drawn(window, ahead=20, waited=3 * STEP, now=now)
    assert window.last.windows == [20 / BATCH - 3]
    assert window.batches == pytest.approx(2 + WINDOW_MARGIN_BATCHES)
    drawn(window, ahead=8, waited=-STEP // 2, now=now)
    assert window.last.windows[-1] == 8 / BATCH + 0.5, "it waited for half a step"


def test_where_the_lease_came_right_after_a_draw_it_had_to_come_before_it() -> None:
    window = LeaseWindow(S, BATCH)
    now = drawn(window, ahead=BATCH, waited=0)
    now = drawn(window, ahead=BATCH, waited=-STEP // 4, now=now, took=STEP)  # leased a quarter of a step after a draw
    assert window.last.windows[-1] == 1 + 0.25
    now = drawn(window, ahead=BATCH, waited=-STEP // 4, now=now, took=STEP + STEP // 4)  # leased at that draw
    assert window.last.windows[-1] == 1 + 1, "in a batch's place that the draw before this one left"
    drawn(window, ahead=2 * BATCH, waited=STEP // 4, now=now, took=2 * STEP)
    assert window.last.windows[-1] == 2 - 0.25, "early batches show nothing of draws"


def test_what_the_learner_waited_at_all_of_these_draws_is_room_for_nodes_that_ask_late() -> None:
    window, now = LeaseWindow(S, BATCH), 0
    now = drawn(window, ahead=BATCH, waited=0)
    for _ in range(3):
        now = drawn(window, ahead=BATCH, waited=-STEP // 4, now=now)
    assert window.batches == pytest.approx(1 + 0.25 + WINDOW_MARGIN_BATCHES + 3 * 0.25)
    for _ in range(REMEMBERED_DRAWS):
        now = drawn(window, ahead=BATCH, waited=0, now=now)
    assert window.batches == 1 + WINDOW_MARGIN_BATCHES, "and that ends with the waits"


def test_the_idle_share_is_that_of_the_last_draws_and_of_the_wait_that_goes_on() -> None:
    window = LeaseWindow(S, BATCH)
    now = drawn(window, ahead=BATCH, waited=0)
    now = drawn(window, ahead=BATCH, waited=-STEP // 4, now=now)
    for _ in range(LEAST_DRAWS - 1):
        assert window.idle_at(now) is None, "too few draws are measured"
        now = drawn(window, ahead=BATCH, waited=STEP, now=now)
    assert window.idle_at(now) == pytest.approx(0.25 / (LEAST_DRAWS + 0.25))
    window.wait(now)
    assert window.idle_at(now + 2 * STEP) == pytest.approx(2.25 / (LEAST_DRAWS + 2.25))


def test_the_window_was_enough_for_each_of_the_last_draws() -> None:
    assert measured(*[1.0] * (REMEMBERED_DRAWS - 1), 3.0).batches == 3 + WINDOW_MARGIN_BATCHES


def test_the_window_is_from_one_batch_to_the_room() -> None:
    assert measured(-5.0).batches == 1
    assert measured(50.0).batches == S + 1


def test_where_a_newer_version_is_on_its_way_its_batch_is_left_to_it() -> None:
    window = settled(1.75)
    assert (window.groups(0, behind=False), window.groups(0, behind=True)) == (2 * BATCH, BATCH)


def test_while_a_whole_batch_waits_for_its_verdicts_nothing_more_is_leased() -> None:
    window = settled(3.75)
    waiting = [window.room(InFlight(undecided, running=2), 0, 0, behind=False) for undecided in range(BATCH + 2)]
    assert waiting == [14, 13, 12, 11, 0, 0], "else the whole window is shared, not what is left of a batch"
    assert LeaseWindow(S, BATCH).room(InFlight(BATCH, running=2), 0, 0, behind=False) > 0, "no draw yet"
    assert window.room(InFlight(undecided=0, running=15), 0, 0, behind=False) == 1, "and the window bounds all"


def test_groups_that_their_environment_scores_now_do_not_wait() -> None:
    window = settled(3.75)
    assert window.room(InFlight(2 * BATCH, running=2, scored=2 * BATCH), 0, 0, behind=False) == 6
    assert window.room(InFlight(2 * BATCH, running=2, scored=BATCH), 0, 0, behind=False) == 0


def test_a_wait_of_more_than_a_step_opens_the_window_until_the_next_draw() -> None:
    window = settled(1.75)
    window.end_step(0)
    window.wait(0)
    waited = [window.batches_at(now) for now in (0, STEP, 2 * STEP, 2 * STEP + STEP // 2, 10 * STEP)]
    assert waited == [2.0, 2.0, 3.0, 3.5, S + 1]
    window.wait(3 * STEP)
    assert window.batches_at(3 * STEP) == 4.0, "it waits since it could not draw first"
    window.draw(None, 3 * STEP)
    assert window.batches_at(9 * STEP) == 2.0, "a long step is no wait"


def test_a_pause_opens_no_window() -> None:
    window = settled(1.75)
    window.wait(0)
    window.stop()
    assert window.batches_at(9 * STEP) == 2.0
    window.wait(9 * STEP)
    assert window.batches_at(11 * STEP) == 3.0
    window.wait(5 * STEP)  # the clock was set back
    assert window.batches_at(5 * STEP) == 2.0


def test_only_the_last_draws_count() -> None:
    window = measured(*[5.0] * REMEMBERED_DRAWS)
    now = window.end_step(0) or 0
    for _ in range(REMEMBERED_DRAWS):
        now = drawn(window, ahead=BATCH, waited=0, now=now)
    assert window.batches == 1 + WINDOW_MARGIN_BATCHES


def test_a_draw_after_a_pause_and_a_step_that_was_lost_show_nothing() -> None:
    window = measured(2.0)
    window.end_step(0)
    window.stop()
    window.draw(CompletedBatch(4, 0, 0), 10 * STEP)
    assert window.last.windows == [2.0]
    window.stop()
    assert not window.end_step(20 * STEP)
    assert window.last.steps == [STEP]


def test_a_clock_that_was_set_back_measures_nothing() -> None:
    window = measured(2.0)
    window.end_step(10 * STEP)
    window.draw(CompletedBatch(4, 0, 0), STEP)
    assert window.last.windows == [2.0]
    assert not window.end_step(0)


# --- requests


def bring(world: World, node: bytes, version: int = 0, ms: int = 1_000) -> None:
    """Let a node lease a group, and bring it after so many milliseconds."""
    lease = world.lease(node, version)
    world.now += ms
    world.submit(group(lease), node)
    world.decide_all()


def train(world: World, step: int, ms: int = STEP) -> None:
    """Let the learner draw a batch, and make a step of it."""
    assert world.group_service.draw(world.now) is not None
    world.now += ms
    world.learner_at(step + 1)
    world.group_service.leases.end_step(world.now)


@pytest.fixture
def quick(tmp_path: Path) -> World:
    """A run in its fifth step, whose nodes bring a batch in seconds, a minute before it is drawn."""
    world = World(tmp_path, batch_groups=BATCH)
    for step in range(4):
        for _ in range(BATCH):
            bring(world, ALICE, step)
        train(world, step)
    return world


def leases_until_refused(world: World, version: int, node: bytes = ALICE) -> int:
    given = 0
    while isinstance(world.group_service.lease(node, world.ask(version), world.now), bytes):
        given += 1
    return given


def test_a_quick_fleet_gets_no_more_than_keeps_the_learner_busy(quick: World) -> None:
    assert quick.group_service.leases.window.batches == pytest.approx(1 + WINDOW_MARGIN_BATCHES, abs=0.3)
    assert leases_until_refused(quick, 4) <= (1.3 + WINDOW_MARGIN_BATCHES) * BATCH + 1
    assert quick.refusal(4).code == "no-room"


def test_the_next_version_gets_the_leases_that_the_last_one_did_not(quick: World) -> None:
    for _ in range(leases_until_refused(quick, 4)):
        pass
    assert quick.refusal(4).code == "no-room"
    for lease in open_leases(quick):
        quick.submit(group(lease))
    quick.decide_all()
    train(quick, 4)
    assert leases_until_refused(quick, 5) >= BATCH - 1


def open_leases(world: World) -> list[Lease]:
    rows = world.group_service.database.all("SELECT id FROM leases WHERE state = 'open'")
    return [world.group_service.leases.find(lease).lease for (lease,) in rows]  # type: ignore[union-attr]


def test_while_a_version_spreads_a_node_with_the_one_before_waits_for_it(quick: World) -> None:
    leases = quick.group_service.leases
    leases.reach = lambda: 5.0
    assert leases_until_refused(quick, 3) == 3, "a little beside that of the newer version"
    assert quick.refusal(3).code == "newer-version"
    quick.now += 5_000
    assert isinstance(quick.group_service.lease(BOB, quick.ask(3), quick.now), bytes)


def test_a_learner_that_waits_has_more_groups_made_ahead(quick: World) -> None:
    before = quick.group_service.leases.window.batches
    for step in range(4, 12):
        quick.now += STEP // 2  # no node asks for half a step
        for _ in range(BATCH):
            bring(quick, ALICE, step)
        train(quick, step)
    assert quick.group_service.leases.window.batches > before + 0.4


def test_keys_that_fill_the_window_and_bring_nothing_stop_the_learner_for_few_steps(tmp_path: Path) -> None:
    """Three accepted groups make a key known, and each known key may have a lease."""
    world, soon = World(tmp_path, batch_groups=BATCH, per_node=3), 2_000
    thieves = [key("thief", number) for number in range(2 * BATCH)]
    workers = [*thieves * 3, *[ALICE] * 4 * BATCH]
    steps = [workers[first : first + BATCH] for first in range(0, len(workers), BATCH)]
    for step, batch in enumerate(steps):
        for node in batch:
            bring(world, node, step, ms=10)
        train(world, step, ms=soon)
    step, began, service = len(steps), world.now, world.group_service
    assert service.draw(world.now) is None
    assert sum(isinstance(service.lease(thief, world.ask(step), world.now), bytes) for thief in thieves) == 7
    assert world.refusal(step).code == "no-room"
    while service.draw(world.now) is None:
        world.now += 100
        service.tick(world.now)
        answer = service.lease(ALICE, world.ask(step), world.now)
        if isinstance(answer, bytes):
            world.submit(group(opened("lease", answer, Lease)))
            world.decide_all()
    assert world.now - began < 3 * soon, "and not until the leases expire, which last ten steps"


def test_groups_at_their_environment_stop_no_lease_and_are_counted_until_their_verdicts(tmp_path: Path) -> None:
    """A grader may take longer than a step and still keep up, where it scores many groups at a time."""
    world = World(tmp_path, batch_groups=BATCH)
    service = world.group_service
    for _ in range(BATCH):  # the learner needs many groups ahead
        bring(world, ALICE)
    train(world, 0)
    service.leases.window.last.windows.append(3.0)
    for _ in range(BATCH):
        world.submit(group(world.lease(version=1)))
    assert world.refusal(1).code == "no-room", "a batch waits for its verdicts"
    waiting = service.list_undecided()
    for one in waiting:
        service.leave_for_reward(one)
        service.begin_reward(one)
    load = service.leases.load(world.at(1), world.now)
    assert (load.undecided, load.scored, load.waiting_for_verdicts) == (BATCH, BATCH, 0)
    assert isinstance(service.lease(ALICE, world.ask(1), world.now), bytes)
    for one in waiting:
        world.decide_one(one)
    assert service.leases.load(world.at(1), world.now).scored == 0


def test_the_window_survives_a_restart(quick: World) -> None:
    last = quick.group_service.leases.window.last
    quick.reopen(away=1_000)
    assert quick.group_service.leases.window.last == last


@pytest.mark.slow
def test_ten_thousand_nodes_that_ask_at_once_get_the_window_at_a_cost_each_that_does_not_grow(quick: World) -> None:
    costs, codes, waits = list[int](), Counter[str](), list[int]()
    for number in range(10_000):
        statements: list[str] = []
        quick.group_service.database.connection.set_trace_callback(statements.append)
        answer = request_lease(quick, f"crowd {number}")
        costs.append(len(statements))
        codes[answer.code if isinstance(answer, Refusal) else ""] += 1
        if isinstance(answer, Refusal):
            waits.append(answer.retry_after)
    assert 0 < codes[""] <= 2 * BATCH
    assert set(codes) <= {"", "no-room", "new-share"}
    assert max(costs[-1000:]) <= max(costs[:1000]), "statements per request"
    assert max(waits) >= 100 * min(waits) > 0, "the more wait, the rarer each asks"
