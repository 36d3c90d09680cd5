"""Turns that wait are given to an environment, and its answers are written down."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.environments.process_pool import ONE_APART_IN
from echo2.coordinator.environments.task_host import EpisodeLost, TurnAnswer
from echo2.coordinator.submissions import step_loop
from echo2.coordinator.submissions.episode_record import LOST_REASON
from echo2.coordinator.submissions.step_loop import StepLoop
from echo2.coordinator.submissions.step_queue import NEW_ONE_IN, RECENT_PLAY_SECONDS
from echo2.protocol.authority import TaskReference
from echo2.protocol.leases import Lease, LeaseReport
from echo2.protocol.requests import Refusal
from echo2.protocol.steps import StepRequest, StepResponse
from echo2.protocol.task_kinds import SERVED_KIND
from echo2.tasks.task import Score, TaskFault
from tests.support.group_world import ALICE, BOB, EOS, SPEC, TEXT, World
from tests.support.hosted_task import Echoes, ServedTask

HANG = 400
"""Seconds. Twice as many are more than the environment has for a lease of a known key."""
TASK = TaskReference(name="guess", version=1, kind=SERVED_KIND)


class EndingEpisode:
    """An episode whose turns end as told."""

    def __init__(self, fault: TaskFault) -> None:
        self._fault = fault

    waits = False

    async def reply(self, sampled: Sequence[int], *, last: bool, begin: Callable[[], None]) -> TurnAnswer:
        raise self._fault

    def leave(self) -> None: ...


class EndingTask(ServedTask):
    """A task whose episodes end as told."""

    def __init__(self, fault: TaskFault) -> None:
        super().__init__(TEXT, Echoes(2), name="guess")
        self._fault = fault

    def episode(self, *_: object, **__: object) -> EndingEpisode:  # type: ignore[override]
        return EndingEpisode(self._fault)


class ShiftingEpisode:
    """An episode whose second turn waits for its process until `free` is set. `wait`: called meanwhile."""

    def __init__(self, free: asyncio.Event, wait: Callable[[], None]) -> None:
        self._free, self._wait, self.waits = free, wait, False

    async def reply(self, sampled: Sequence[int], *, last: bool, begin: Callable[[], None]) -> TurnAnswer:
        if self.waits and not self._free.is_set():
            self._wait()
            await self._free.wait()
        begin()
        self.waits = True
        return TurnAnswer([5])

    def leave(self) -> None: ...


class ShiftingTask(ServedTask):
    """A task of such episodes."""

    def __init__(self, free: asyncio.Event, wait: Callable[[], None]) -> None:
        super().__init__(TEXT, Echoes(8), name="guess")
        self._free, self._wait = free, wait

    def episode(self, *_: object, **__: object) -> ShiftingEpisode:  # type: ignore[override]
        return ShiftingEpisode(self._free, self._wait)


class TwiceTriedEpisode:
    """An episode whose turn ends two processes. `wait`: called while each computes."""

    waits = False

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    async def reply(self, sampled: Sequence[int], *, last: bool, begin: Callable[[], None]) -> TurnAnswer:
        for _ in range(2):
            begin()
            self._wait()
        raise TaskFault("environment ended with -9", verified=True)

    def leave(self) -> None: ...


class TwiceTriedTask(ServedTask):
    """A task of such episodes."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__(TEXT, Echoes(2), name="guess")
        self._wait = wait

    def episode(self, *_: object, **__: object) -> TwiceTriedEpisode:  # type: ignore[override]
        return TwiceTriedEpisode(self._wait)


class LeftEpisode(ShiftingEpisode):
    """An episode that tells when it is left."""

    def __init__(self, left: Callable[[], None]) -> None:
        super().__init__(asyncio.Event(), lambda: None)
        self._free.set()
        self._left = left

    def leave(self) -> None:
        self._left()


class ApartTask(ShiftingTask):
    """A task that notes which of its episodes are apart, and how many were left."""

    def __init__(self) -> None:
        super().__init__(asyncio.Event(), lambda: None)
        self.apart = list[bool]()
        self.left = 0

    def episode(self, *_: object, apart: bool = False, **__: object) -> LeftEpisode:  # type: ignore[override]
        self.apart.append(apart)
        return LeftEpisode(self._note_left)

    def _note_left(self) -> None:
        self.left += 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    one = World(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[TASK]))
    one.group_service.accounts.remark(ALICE, "node.vouched", "", one.now)
    return one


@pytest.mark.parametrize(
    ("fault", "failed", "reasons"),
    [
        (TaskFault("reply raised KeyError", verified=True), [True, False], {"reply raised KeyError": 1}),
        (EpisodeLost("begun anew it answers otherwise than before"), [False], {LOST_REASON: 1}),
    ],
    ids=["failed", "lost"],
)
async def test_an_episode_that_another_one_took_down_is_shown_and_no_failure_of_its_task(
    world: World, fault: TaskFault, failed: list[bool], reasons: dict[str, int]
) -> None:
    steps, record = world.group_service.steps, world.group_service.episodes.of("guess")
    loop = StepLoop(EndingTask(fault), steps, record, workers=1, clock=lambda: world.now / 1000)
    lease = world.lease()
    request = StepRequest(lease=lease.id, sample=0, turn_number=0, tokens=[5, EOS])
    running = asyncio.create_task(loop.run())
    try:
        assert isinstance(steps.step(ALICE, request, world.now), Refusal)
        answered = steps.answer_event(lease.id, 0)
        await answered.wait()
    finally:
        running.cancel()
    ended = steps.step(ALICE, request, world.now)
    assert ended.given is None
    record.note_episodes(lease.id, len(lease.seeds))
    assert (list(record.failed), dict(record.reasons)) == (failed, reasons)
    assert record.reason == ("" if LOST_REASON in reasons else "reply raised KeyError")


async def test_a_turn_that_waits_for_a_busy_process_delays_no_other_and_costs_its_lease_nothing(world: World) -> None:
    steps, free, waits = world.group_service.steps, asyncio.Event(), asyncio.Event()
    number = itertools.count(1)

    def wait() -> None:
        if next(number) == 2:
            world.now += 1000 * HANG  # of the process's other episode
            waits.set()

    loop = StepLoop(
        ShiftingTask(free, wait), steps, world.group_service.episodes.of("guess"), workers=1,
        clock=lambda: world.now / 1000,
    )  # fmt: skip
    first = world.lease()

    async def answer(sample: int, number: int, lease: Lease = first) -> StepResponse:
        request = StepRequest(lease=lease.id, sample=sample, turn_number=number, tokens=[5, EOS])
        if isinstance(told := steps.step(ALICE, request, world.now), Refusal):
            answered = steps.answer_event(lease.id, sample)
            assert answered is not None, told
            await answered.wait()
            told = steps.step(ALICE, request, world.now)
        assert isinstance(told, StepResponse)
        return told

    running = asyncio.create_task(loop.run())
    try:
        for sample in range(2):
            assert (await answer(sample, 0)).given == [5]
        waiting = [asyncio.create_task(answer(sample, 2)) for sample in range(2)]
        await waits.wait()
        assert (await answer(0, 0, world.lease())).given == [5], "the only loop is free"
        free.set()
        assert [(await one).given for one in waiting] == [[5], [5]]
        assert (await answer(0, 4)).given == [5], "the environment's time for the lease is not used up"
    finally:
        running.cancel()


async def test_a_turn_that_ends_its_process_twice_is_charged_for_both(world: World) -> None:
    steps = world.group_service.steps

    def wait() -> None:
        world.now += 9_000

    loop = StepLoop(
        TwiceTriedTask(wait), steps, world.group_service.episodes.of("guess"), workers=1,
        clock=lambda: world.now / 1000,
    )  # fmt: skip
    lease = world.lease(BOB)
    running = asyncio.create_task(loop.run())
    try:
        steps.step(BOB, StepRequest(lease=lease.id, sample=0, turn_number=0, tokens=[5, EOS]), world.now)
        answered = steps.answer_event(lease.id, 0)
        await answered.wait()
    finally:
        running.cancel()
    other = world.lease()
    for node, one, sample in ((ALICE, other, 0), (BOB, lease, 1)):
        steps.step(node, StepRequest(lease=one.id, sample=sample, turn_number=0, tokens=[5, EOS]), world.now)
    assert (await steps.take("guess", lambda: world.now / 1000)).lease == other
    paused = steps._queues["guess"].queue.look_again(world.now / 1000)
    assert paused == (NEW_ONE_IN - 1) * 18.0


async def test_episodes_of_new_keys_are_apart_while_known_keys_play(world: World) -> None:
    steps = world.group_service.steps

    async def taken(node: bytes) -> bool:
        lease = world.lease(node)
        steps.step(node, StepRequest(lease=lease.id, sample=0, turn_number=0, tokens=[5, EOS]), world.now)
        asked = await steps.take("guess", lambda: world.now / 1000)
        assert asked.lease == lease
        steps.on_answer(asked, TurnAnswer(None, Score(1.0, True)), 0.0, world.now)
        return asked.apart

    assert not await taken(BOB)
    assert not await taken(ALICE)
    assert await taken(BOB)
    world.now += int(1000 * RECENT_PLAY_SECONDS)
    assert not await taken(BOB)
    assert ONE_APART_IN == NEW_ONE_IN


async def test_episodes_of_new_keys_are_apart_while_one_of_a_known_key_is_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_loop, "ENDED_LEASE_POLL_SECONDS", 0.01)
    steps, task = world.group_service.steps, ApartTask()
    record = world.group_service.episodes.of("guess")
    loop = StepLoop(task, steps, record, workers=1, clock=lambda: world.now / 1000)

    async def opened(node: bytes) -> Lease:
        lease = world.lease(node)
        steps.step(node, StepRequest(lease=lease.id, sample=0, turn_number=0, tokens=[5, EOS]), world.now)
        answered = steps.answer_event(lease.id, 0)
        await answered.wait()
        world.now += int(1500 * RECENT_PLAY_SECONDS)
        return lease

    def give_back(node: bytes, lease: Lease) -> None:
        world.group_service.take_report(node, LeaseReport(returned=[lease.id]), world.now)

    running = asyncio.create_task(loop.run())
    try:
        give_back(BOB, await opened(BOB))
        of_alice = await opened(ALICE)
        give_back(BOB, await opened(BOB))
        give_back(ALICE, of_alice)
        async with asyncio.timeout(60):
            while task.left < 3:  # noqa: ASYNC110 (the loop looks at intervals)
                await asyncio.sleep(0.01)
        await opened(BOB)
    finally:
        running.cancel()
    assert task.apart == [False, False, True, False]
