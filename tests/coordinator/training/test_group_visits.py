"""Visits verify waiting groups, retry one alone after a failure, and refuse it after a second."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from echo2.coordinator.publishing.published import Published
from echo2.coordinator.training import group_visits
from echo2.coordinator.training.group_visits import MOST_SHORTAGES, MOST_TOKENS, REST_SECONDS, at_once
from echo2.coordinator.training.scoring_loop import Scoring
from echo2.coordinator.verdicts.group_dispatch import GroupDispatch
from echo2.coordinator.verdicts.scoring_order import VISIT_GROUPS
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.verification import Verdict
from echo2.runtime.child import ChildDied, ChildError
from tests.support import sqlite_cost
from tests.support.clock import on_fake_clock
from tests.support.group_world import World
from tests.support.scoring_world import StandIns, scoring_over, verdicts, visits_over, waiting


@pytest.fixture
def scorer() -> StandIns:
    return StandIns()


@pytest.fixture
def scoring(world: World, scorer: StandIns) -> Scoring:
    return scoring_over(world, scorer)


def note_passes(monkeypatch: pytest.MonkeyPatch, scorer: StandIns, note: Callable[[Undecided], None]) -> None:
    """Call `note` with each group that the scorer gets; let other tasks run before it is verified."""
    verify = scorer.verify

    async def noted(group: Undecided, first: int | None) -> Verdict:
        note(group)
        await asyncio.sleep(0)
        return await verify(group, first)

    monkeypatch.setattr(scorer, "verify", noted)


EARLIER = Published(1, 0, bytes(32), b"", b"")


@pytest.fixture
def drawing(world: World, scorer: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw every good group for a pass under the version before."""
    monkeypatch.setattr(world.group_service, "draw_pass_before", lambda group: True)
    scorer.earlier = EARLIER


def test_at_least_two_groups_are_in_flight_and_never_more_than_the_bound(world: World) -> None:
    terms = world.group_service.terms
    assert at_once(msgspec.structs.replace(terms, group_size=1024, limit=1 << 20)) == 2
    assert at_once(msgspec.structs.replace(terms, group_size=16, limit=1024)) == MOST_TOKENS // (16 * 1024)
    assert at_once(msgspec.structs.replace(terms, group_size=8, limit=16)) == VISIT_GROUPS


async def test_the_verdicts_of_one_iteration_are_given_together(world: World, scoring: Scoring) -> None:
    waiting(world, 5)
    with sqlite_cost.statements(world.group_service.database) as run:
        await scoring.round()
    assert len(verdicts(world)) == 5
    assert run.count("COMMIT") == 1


async def test_the_scorer_has_the_next_group_before_a_verdict_is_written(
    world: World, scoring: Scoring, scorer: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 60f0d1f2 it waits for the verdicts of all groups that a pass has scored."""
    monkeypatch.setattr(group_visits, "at_once", lambda terms: 2)
    waiting(world, 6)
    written = list[int]()
    note_passes(monkeypatch, scorer, lambda group: written.append(len(verdicts(world))))
    await scoring.round()
    assert written == [0, 0, 0, 0, 2, 2]
    assert len(verdicts(world)) == 6


async def test_a_verdict_that_fails_ends_the_visit(
    world: World, scoring: Scoring, scorer: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_visits, "at_once", lambda terms: 2)
    waiting(world, 6)
    verified = list[bytes]()

    def fails(*_: Any) -> list[bytes]:
        raise RuntimeError("no verdict can be written")

    note_passes(monkeypatch, scorer, lambda group: verified.append(group.lease.id))
    with monkeypatch.context() as patch:
        patch.setattr(world.group_service, "decide_all", fails)
        with pytest.raises(RuntimeError, match="no verdict"):
            await scoring.round()
    assert len(verified) == 4
    await scoring.round()
    assert len(verdicts(world)) == 6


async def test_a_round_decides_every_waiting_group(world: World, scoring: Scoring) -> None:
    leases = waiting(world, 3)
    assert await scoring.round()
    assert {lease: verdict for lease, (verdict, _) in verdicts(world).items()} == dict.fromkeys(leases, "accepted")
    assert scoring.visits.decided.is_set()
    assert not await scoring.round()


async def test_a_visit_makes_no_more_tasks_than_it_has_groups(world: World, scoring: Scoring) -> None:
    """On 926a386 each visit makes 256, which block the event loop for up to 0.1 s beside a verdict of 1 ms."""
    waiting(world, 3)
    begun = list[str]()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        begun.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **named)

    asyncio.get_running_loop().set_task_factory(make)
    await scoring.round()
    assert len(verdicts(world)) == 3
    assert begun == ["GroupVisits._judge_each"] * 3


async def test_a_group_at_which_the_scorer_fails_once_is_tried_again_by_a_new_one(
    world: World, scoring: Scoring, scorer: StandIns
) -> None:
    first, second = waiting(world, 2)
    scorer.errors[first] = [ChildError("ValueError", "absurd")]
    await scoring.round()
    assert {verdicts(world)[lease][0] for lease in (first, second)} == {"accepted"}
    assert scorer.renewed == 1


async def test_a_group_at_which_it_fails_twice_is_refused_and_no_other(
    world: World, scoring: Scoring, scorer: StandIns
) -> None:
    first, second = waiting(world, 2)
    scorer.errors[first] = [ChildError("ValueError", "absurd")] * 2
    await scoring.round()
    assert verdicts(world)[first][0] == "refused"
    assert verdicts(world)[second][0] == "accepted"


async def test_a_scorer_that_dies_costs_no_verdict_until_the_third_death_of_one_group_alone(
    world: World, scoring: Scoring, scorer: StandIns
) -> None:
    first, second = waiting(world, 2)
    scorer.errors[first] = [ChildDied("scorer", -9, "killed")] * 4
    for _ in range(4):
        with pytest.raises(ChildDied):
            await scoring.round()
    assert verdicts(world)[first][0] == "refused"
    await scoring.round()
    assert verdicts(world)[second][0] == "accepted"


FULL = ChildError("NoMemory", "the device has no memory left")


async def test_memory_that_lacks_for_a_while_costs_no_verdict(world: World, scoring: Scoring, scorer: StandIns) -> None:
    first, second = waiting(world, 2)
    scorer.errors[first] = [FULL] * 4
    for _ in range(3):
        with pytest.raises(ChildError, match="no memory left"):
            await scoring.round()
        assert {lease: verdict for lease, (verdict, _) in verdicts(world).items()} == {second: "accepted"}
    await scoring.round()
    assert verdicts(world)[first][0] == "accepted"


async def test_a_group_for_which_memory_always_lacks_is_refused_in_the_end(
    world: World, scoring: Scoring, scorer: StandIns
) -> None:
    (first,) = waiting(world, 1)
    scorer.errors[first] = [FULL] * (MOST_SHORTAGES + 1)
    for _ in range(MOST_SHORTAGES - 1):
        with pytest.raises(ChildError, match="no memory left"):
            await scoring.round()
    await scoring.round()
    assert verdicts(world)[first][0] == "refused"


@on_fake_clock
async def test_the_only_scorer_rests_while_memory_lacks_once_it_has_had_enough(world: World) -> None:
    loop = asyncio.get_running_loop()
    dispatch = GroupDispatch(world.group_service, loop.time, lambda: None)
    visits = visits_over(world, dispatch, StandIns())
    with pytest.raises(ChildError, match="no memory left"):
        await visits.rest(FULL)
    assert await visits.hold(0, bytes(32))
    began = loop.time()
    await visits.rest(FULL)
    assert loop.time() - began == pytest.approx(REST_SECONDS)
    assert not visits.seat.resting
    with pytest.raises(ChildError, match="is gone"):
        await visits.rest(ChildError("NoDevice", "the card is gone"))


async def test_groups_of_a_version_that_is_no_longer_available_are_given_up(
    world: World, scoring: Scoring, scorer: StandIns
) -> None:
    (lease,) = waiting(world, 1)
    scorer.available = False
    await scoring.round()
    assert verdicts(world)[lease][0] == "refused"


@pytest.mark.usefixtures("drawing")
async def test_drawn_groups_are_passed_together_under_the_version_before_and_then_decided(
    world: World, scoring: Scoring, scorer: StandIns
) -> None:
    leases = waiting(world, 3)
    await scoring.round()
    assert sorted(scorer.passed) == sorted((lease, EARLIER.root) for lease in leases)
    assert {code for code, _ in verdicts(world).values()} == {"accepted"}
    assert not await scoring.round()


@pytest.mark.usefixtures("drawing")
@pytest.mark.parametrize("fails", [True, False])
async def test_without_that_pass_a_drawn_group_is_decided_all_the_same(
    world: World, scoring: Scoring, scorer: StandIns, fails: bool
) -> None:
    first, second = waiting(world, 2)
    scorer.earlier = EARLIER if fails else None
    passed = scorer.pass_before

    async def pass_before(group: Undecided, verdict: Verdict) -> Verdict:
        scorer.errors = {first: [ChildError("ValueError", "absurd")]}
        return await passed(group, verdict)

    scorer.pass_before = pass_before  # type: ignore[method-assign]
    await scoring.round()
    assert {verdicts(world)[lease][0] for lease in (first, second)} == {"accepted"}
    assert bool(scorer.passed) == fails


@pytest.mark.usefixtures("drawing")
async def test_a_scorer_that_dies_under_the_version_before_costs_no_verdict(
    world: World, scoring: Scoring, scorer: StandIns
) -> None:
    first, second = waiting(world, 2)

    async def pass_before(group: Undecided, verdict: Verdict) -> Verdict:
        scorer.passed.append((group.lease.id, None))
        raise ChildDied("scorer", -9, "killed")

    scorer.pass_before = pass_before  # type: ignore[method-assign]
    with pytest.raises(ChildDied):
        await scoring.round()
    assert verdicts(world) == {}
    await scoring.round()
    assert {verdicts(world)[lease][0] for lease in (first, second)} == {"accepted"}
    assert len(scorer.passed) == 2
