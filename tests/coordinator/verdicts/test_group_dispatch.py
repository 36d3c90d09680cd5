"""Several scorers verify the waiting groups of one run: each group once, whatever becomes of a scorer."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from echo2.coordinator.training import group_visits
from echo2.coordinator.training.group_visits import GroupVisits
from echo2.coordinator.verdicts.group_dispatch import GroupDispatch
from echo2.coordinator.verdicts.scoring_order import VISIT_GROUPS
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.verification import Verdict
from echo2.runtime.child import ChildDied, ChildError
from tests.support.clock import on_fake_clock, run_fake
from tests.support.group_world import World, root_of
from tests.support.scoring_world import StandIns, scoring_over, verdicts, visits_over, waiting


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, batch_groups=2 * VISIT_GROUPS, per_node=4 * VISIT_GROUPS)


class TimedScorer(StandIns):
    """A scorer that takes `seconds` for a group, one after the other, and `change` for a version. `scored`: leases.
    `held`: roots that it has loaded, one after the other. `dies_after`: groups after which it dies, once. `hangs`:
    whether it hangs at its next group, until `end` is called."""

    def __init__(self, seconds: float = 1.0, change: float = 0.0) -> None:
        super().__init__()
        self.seconds, self.change = seconds, change
        self.scored: list[bytes] = []
        self.held: list[bytes] = []
        self.dies_after: int | None = None
        self.hangs = False
        self._device, self._ended = asyncio.Lock(), asyncio.Event()

    def end(self) -> None:
        """End the process that hangs."""
        self.hangs = False
        self._ended.set()

    async def hold(self, root: bytes) -> bool:
        if self.at != root:
            await asyncio.sleep(self.change)
            self.held.append(root)
        return await super().hold(root)

    async def verify(self, group: Undecided, first: int | None) -> Verdict:
        async with self._device:
            if self.hangs:
                await self._ended.wait()
                raise ChildDied("scorer", -9, "it was ended as hung")
            await asyncio.sleep(self.seconds)
            if self.dies_after == len(self.scored):
                self.dies_after = None
                raise ChildDied("scorer", -9, "killed")
            self.scored.append(group.lease.id)
            return await super().verify(group, first)


def judge_all(
    world: World, scorers: Sequence[TimedScorer], then: Callable[[list[GroupVisits]], None] = lambda visits: None
) -> float:
    """Let scorers verify what waits; return the seconds that it takes. `then`: called once they are at work."""

    async def main() -> float:
        arrived = asyncio.Event()
        dispatch = GroupDispatch(world.group_service, asyncio.get_running_loop().time, arrived.set)
        visits = [visits_over(world, dispatch, scorer) for scorer in scorers]
        tasks = [asyncio.create_task(one.run(arrived)) for one in visits]
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.5)
        then(visits)
        while world.group_service.list_undecided(1):
            assert not any(task.done() for task in tasks)
            await asyncio.sleep(0.01)
        taken = asyncio.get_running_loop().time() - began
        await asyncio.sleep(0.1)
        assert all(one.seat.idle for one in visits if not isinstance(one.scorer, Broken)), "none is busy in vain"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return taken

    return float(run_fake(main))


class Broken(TimedScorer):
    """A scorer whose device is gone."""

    async def hold(self, root: bytes) -> bool:
        raise ChildError("NoDevice", "cuda:1 does not exist")


class Lost(Broken):
    """A scorer whose host is lost at its first group; its next processes die before they are ready. `ends`: their
    number."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_after, self.ends = 0, 0

    async def hold(self, root: bytes) -> bool:
        if self.dies_after is not None:
            return await TimedScorer.hold(self, root)
        self.loaded = None
        await asyncio.sleep(60)
        self.ends += 1
        raise ChildDied("scorer", 1, "Ray has no host for it within 60 s")

    async def verify(self, group: Undecided, first: int | None) -> Verdict:
        try:
            return await super().verify(group, first)
        except ChildDied:
            self.loaded = None
            raise


def accepted(world: World) -> set[bytes]:
    found = verdicts(world)
    assert {verdict for verdict, _ in found.values()} <= {"accepted"}
    return set(found)


@pytest.mark.parametrize(("number", "most"), [(1, 40.0), (2, 21.0), (4, 11.0)])
def test_several_scorers_share_the_groups_of_one_version(world: World, number: int, most: float) -> None:
    leases, scorers = waiting(world, 40), [TimedScorer() for _ in range(number)]
    assert judge_all(world, scorers) <= most + 0.1
    assert accepted(world) == set(leases)
    assert sorted(lease for one in scorers for lease in one.scored) == sorted(leases), "each group once"


def test_a_slower_scorer_takes_fewer_groups(world: World) -> None:
    leases, quick, slow = waiting(world, 40), TimedScorer(1.0), TimedScorer(3.0)
    assert judge_all(world, [quick, slow]) <= 36.0
    assert accepted(world) == set(leases)
    assert len(slow.scored) < len(quick.scored) / 2


def test_a_quick_scorer_has_two_seconds_of_work_ahead_so_that_its_passes_are_full(world: World) -> None:
    waiting(world, 100)
    quick, slow = TimedScorer(0.05), TimedScorer(1.0)
    most = list[int]()

    def look(visits: list[GroupVisits]) -> None:
        most.extend(len(one.seat.out) for one in visits)

    judge_all(world, [quick, slow], look)
    assert most[0] > 10
    assert most[1] <= 2


def test_each_scorer_keeps_to_its_version_while_there_are_groups_of_it(world: World) -> None:
    for version in (1, 2):
        world.learner_at(version)
    leases = [lease for _ in range(20) for version in (1, 2) for lease in waiting(world, 1, version)]
    scorers = [TimedScorer(change=5.0), TimedScorer(change=5.0)]
    assert judge_all(world, scorers) <= 40.0
    assert accepted(world) == set(leases)
    assert sum(len(one.held) for one in scorers) <= 3
    assert {one.held[0] for one in scorers} == {root_of(1, 1), root_of(1, 2)} or len(scorers[0].held) == 1


def test_a_group_goes_to_the_idle_scorer_that_has_its_version(world: World) -> None:
    for version in (1, 2):
        world.learner_at(version)
    scorers = [TimedScorer(), TimedScorer()]
    waiting(world, 1, 1)

    async def main() -> None:
        arrived = asyncio.Event()
        dispatch = GroupDispatch(world.group_service, asyncio.get_running_loop().time, arrived.set)
        visits = [visits_over(world, dispatch, scorer) for scorer in scorers]
        tasks = [asyncio.create_task(one.run(arrived)) for one in visits]
        for version in (2, 1, 2, 1, 2):
            await asyncio.sleep(0.2)
            waiting(world, 1, version)
            arrived.set()
            await asyncio.sleep(2.0)
        for task in tasks:
            task.cancel()

    run_fake(main)
    assert [len(one.held) for one in scorers] == [1, 1], "none ever changes its version"


@pytest.mark.parametrize("available", [True, False])
def test_a_further_scorer_loads_the_newest_version_before_a_group_waits(world: World, available: bool) -> None:
    world.learner_at(1)

    class Cold(TimedScorer):
        async def hold(self, root: bytes) -> bool:
            self.held.append(root)
            self.loaded = self.available or None
            return self.available

    async def main() -> list[bytes]:
        arrived, scorer = asyncio.Event(), Cold()
        scorer.available, scorer.loaded = available, None
        dispatch = GroupDispatch(world.group_service, asyncio.get_running_loop().time, arrived.set)
        task = asyncio.create_task(visits_over(world, dispatch, scorer).run(arrived))
        for _ in range(3):
            await asyncio.sleep(1)
            arrived.set()
        task.cancel()
        return scorer.held

    assert run_fake(main) == [root_of(1, 1)], "once, whether or not it can be loaded"


def test_a_scorer_that_dies_costs_no_verdict_and_another_takes_its_groups(world: World) -> None:
    leases, first, second = waiting(world, 12), TimedScorer(), TimedScorer()
    second.dies_after = 2
    judge_all(world, [first, second])
    assert accepted(world) == set(leases)
    assert max(Counter([*first.scored, *second.scored]).values()) == 1


@pytest.mark.parametrize("place", [0, 1, 2])
@on_fake_clock
async def test_no_group_waits_for_a_scorer_that_does_not_come_back(world: World, place: int) -> None:
    """On c8a5c611 the scorer has the group at which it died for ever, 60 s after 60 s."""
    for version in (1, 2):
        world.learner_at(version)
    leases = [lease for version in (1, 2) for lease in waiting(world, 6, version)]
    lost, scorers = Lost(), [TimedScorer(change=1.0) for _ in range(2)]
    arrived = asyncio.Event()
    dispatch = GroupDispatch(world.group_service, asyncio.get_running_loop().time, arrived.set)
    visits = [visits_over(world, dispatch, one) for one in [*scorers[:place], lost, *scorers[place:]]]
    tasks = [asyncio.create_task(one.run(arrived)) for one in visits]
    for number in range(60):
        await asyncio.sleep(15)
        assert not world.group_service.list_undecided(1), "each is decided within 15 s"
        leases.extend(waiting(world, 1, 1 + number % 2))
        arrived.set()
    await asyncio.sleep(15)
    for task in tasks:
        assert not task.done()
        task.cancel()
    assert accepted(world) == set(leases)
    assert lost.ends > group_visits.MOST_DEATHS


def test_a_scorer_that_hangs_costs_only_time(world: World) -> None:
    leases, first, second = waiting(world, 12), TimedScorer(), TimedScorer()
    second.hangs = True
    open_groups = list[int]()

    async def end_later() -> None:
        await asyncio.sleep(60)
        open_groups.append(len(world.group_service.list_undecided(100)))
        second.end()

    background = list[asyncio.Task[None]]()
    taken = judge_all(world, [first, second], lambda visits: background.append(asyncio.create_task(end_later())))
    assert 60 < taken < 70
    assert 1 <= open_groups[0] <= 2, "all but those that it has are verified meanwhile"
    assert accepted(world) == set(leases)


def test_a_scorer_whose_device_is_gone_rests_and_the_other_verifies_all(world: World) -> None:
    leases, scorer = waiting(world, 6), TimedScorer()
    judge_all(world, [scorer, Broken()])
    assert accepted(world) == set(leases)
    assert len(scorer.scored) == 6


def test_the_rate_of_a_scorer_that_rests_is_not_counted(world: World) -> None:
    scoring = scoring_over(world, TimedScorer())
    further = visits_over(world, scoring.visits.dispatch, TimedScorer())
    scoring.further = [further]
    scoring.visits.rate.on_visit(20, 2.0, full=True)
    further.rate.on_visit(10, 2.0, full=True)
    assert (scoring.verified_rate, len(scoring.working)) == (15.0, 2)
    further.seat.resting = True
    assert (scoring.verified_rate, len(scoring.working)) == (10.0, 1)


async def test_the_fault_of_the_last_scorer_that_could_work_is_raised(world: World) -> None:
    waiting(world, 1)
    arrived = asyncio.Event()
    dispatch = GroupDispatch(world.group_service, asyncio.get_running_loop().time, arrived.set)
    visits = [visits_over(world, dispatch, Broken()) for _ in range(2)]
    running = [asyncio.create_task(one.run(arrived)) for one in visits]
    done, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert [type(one.exception()) for one in done] == [ChildError]
    for task in left:
        task.cancel()


async def test_the_fault_of_the_only_scorer_is_raised(world: World) -> None:
    waiting(world, 1)
    dispatch = GroupDispatch(world.group_service, asyncio.get_running_loop().time, lambda: None)
    with pytest.raises(ChildError, match="does not exist"):
        await visits_over(world, dispatch, Broken()).run(asyncio.Event())


def test_a_group_that_kills_every_scorer_is_refused_and_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, *others = waiting(world, 8)

    class Fragile(TimedScorer):
        async def verify(self, group: Undecided, first: int | None) -> Verdict:
            if group.lease.id == bad:
                raise ChildDied("scorer", -11, "segmentation fault")
            return await super().verify(group, first)

    judge_all(world, [Fragile(), Fragile()])
    found = verdicts(world)
    assert {lease for lease, (verdict, _) in found.items() if verdict == "refused"} == {bad}
    assert set(found) == {bad, *others}


def test_groups_of_several_visits_are_all_verified(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_visits, "VISIT_GROUPS", 5)
    monkeypatch.setattr("echo2.coordinator.verdicts.group_dispatch.VISIT_GROUPS", 5)
    leases = waiting(world, 33)
    scorers = [TimedScorer(), TimedScorer(0.1), TimedScorer(0.7)]
    judge_all(world, scorers)
    assert accepted(world) == set(leases)
    assert max(Counter(lease for one in scorers for lease in one.scored).values()) == 1
