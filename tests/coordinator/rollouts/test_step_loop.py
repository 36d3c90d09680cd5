"""Turns that wait are given to an environment, and its answers are written down."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from coordinator.environments.task_host import EpisodeLost, TurnAnswer
from coordinator.rollouts.episode_record import LOST
from coordinator.rollouts.step_loop import StepLoop
from protocol.authority import TaskReference
from protocol.requests import Refusal
from protocol.steps import StepRequest, StepResponse
from protocol.task_kinds import SERVED
from tasks.task import TaskFault
from tests.support.group_world import ALICE, EOS, SPEC, TEXT, World
from tests.support.hosted_task import Echoes, ServedTask

TASK = TaskReference(name="guess", version=1, kind=SERVED)


class EndingEpisode:
    """An episode whose turns end as told."""

    def __init__(self, fault: TaskFault) -> None:
        self._fault = fault

    async def reply(self, sampled: Sequence[int], *, last: bool) -> TurnAnswer:
        raise self._fault

    def leave(self) -> None: ...


class EndingTask(ServedTask):
    """A task whose episodes end as told."""

    def __init__(self, fault: TaskFault) -> None:
        super().__init__(TEXT, Echoes(2), name="guess")
        self._fault = fault

    def episode(self, split: str, index: int, past: Sequence[Sequence[int]] = ()) -> EndingEpisode:  # type: ignore[override]
        return EndingEpisode(self._fault)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path, spec=msgspec.structs.replace(SPEC, tasks=[TASK]))
    one.group_service.accounts.remark(ALICE, "node.vouched", "", one.now)
    yield one
    one.close()


@pytest.mark.parametrize(
    ("fault", "failed", "reasons"),
    [
        (TaskFault("reply raised KeyError", verified=True), [True, False], {"reply raised KeyError": 1}),
        (EpisodeLost("begun anew it answers otherwise than before"), [False], {LOST: 1}),
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
        answered = steps.asked(lease.id, 0)
        assert answered is not None
        await answered.wait()
    finally:
        running.cancel()
    ended = steps.step(ALICE, request, world.now)
    assert isinstance(ended, StepResponse)
    assert ended.given is None
    record.decided(lease.id, len(lease.seeds))
    assert (list(record.failed), dict(record.reasons)) == (failed, reasons)
    assert record.reason == ("" if LOST in reasons else "reply raised KeyError")
