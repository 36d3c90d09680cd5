"""A death of the learner process counts against a batch only if it had begun to compute it unprompted."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest

from coordinator.learner.messages import Batch
from coordinator.training.model_processes import DiedComputing, LearnerChild, restarts
from engines.supervisor import Supervisor
from runtime.child import Child, ChildDied, ChildError, python_path

CHILD = """
import os, signal, sys, time
from runtime.child import Pipe
pipe = Pipe()
from coordinator.learner.messages import BEGUN, Batch, Begun

def step(batch):
    story = batch.groups[0].decode()
    if story != "before":
        pipe.notify(BEGUN, Begun(step=batch.step))
    if story == "error":
        raise ValueError("no good")
    if story == "hangs":
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGTERM if story == "told" else signal.SIGKILL)
    time.sleep(600)

pipe.serve({"train": (Batch, step)})
"""


@pytest.fixture
async def learner() -> AsyncIterator[LearnerChild]:
    argv = [sys.executable, "-c", CHILD]
    child = Supervisor(
        lambda: Child(argv, name="learner", env=python_path()), restarts(), clock=lambda: 1e6 * time.monotonic()
    )
    yield LearnerChild(child)
    await child.stop()


def batch(story: str, step: int = 1) -> Batch:
    return Batch(step=step, groups=[story.encode()])


async def test_a_death_during_the_computation_counts_against_the_batch(learner: LearnerChild) -> None:
    with pytest.raises(DiedComputing):
        await learner.step(batch("killed"))


@pytest.mark.parametrize("story", ["before", "told"])
async def test_a_death_before_the_computation_or_by_sigterm_does_not_count(learner: LearnerChild, story: str) -> None:
    with pytest.raises(ChildDied) as death:
        await learner.step(batch(story))
    assert not isinstance(death.value, DiedComputing)


async def test_the_begin_of_one_step_does_not_count_for_the_next(learner: LearnerChild) -> None:
    with pytest.raises(ChildError, match="no good"):
        await learner.step(batch("error"))
    with pytest.raises(ChildDied) as death:
        await learner.step(batch("before"))
    assert not isinstance(death.value, DiedComputing)


@pytest.mark.parametrize("stop", [lambda learner: learner.renew(), lambda learner: learner.child.stop()])
async def test_an_end_requested_by_main_does_not_count(
    learner: LearnerChild, stop: Callable[[LearnerChild], object]
) -> None:
    begun = asyncio.Event()
    heard = learner._heard
    learner.child.on_event = lambda method, body: (heard(method, body), begun.set())[0]
    under_way = asyncio.create_task(learner.step(batch("hangs")))
    await begun.wait()
    await stop(learner)  # type: ignore[misc]
    with pytest.raises(ChildDied) as death:
        await under_way
    assert not isinstance(death.value, DiedComputing)
