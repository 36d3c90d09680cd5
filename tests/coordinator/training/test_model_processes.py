"""A death of the learner process counts against a batch only if it had begun to compute it unprompted."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from echo2.coordinator.learner.messages import DEVICE_LOST, Batch, Hyper, Open
from echo2.coordinator.training import model_processes
from echo2.coordinator.training.model_processes import DiedComputing, LearnerChild, restarts
from echo2.runtime.child import Child, ChildDied, ChildError
from tests.support.fake_coordinator import until

CHILD = """
import os, signal, sys, time
from echo2.runtime.child_pipe import Pipe
pipe = Pipe()
from echo2.coordinator.learner.messages import BATCH_BEGUN_METHOD, RANKS_MET_METHOD, Batch, Begun, Met, Open, Opened

def step(batch):
    story = batch.groups[0].decode()
    if story != "before":
        pipe.notify(BATCH_BEGUN_METHOD, Begun(step=batch.step))
    if story == "error":
        raise ValueError("no good")
    if story == "lost":
        print("DeviceLost: the device failed: CUDA error: gone\\nrank 1 has ended", file=sys.stderr, flush=True)
    if story == "hangs":
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGTERM if story == "told" else signal.SIGKILL)
    time.sleep(600)

def opened(order):
    if order.device == "all there":
        pipe.notify(RANKS_MET_METHOD, Met(ranks=2))
    while order.device == "one is missing" or not os.path.exists(order.folder):
        time.sleep(0.01)
    return Opened(step=0, drawn=[], parameters=7)

pipe.serve({"train": (Batch, step), "open": (Open, opened)})
"""


class HeardLearner(LearnerChild):
    """A learner whose messages are heard. `heard`: set by each of them."""

    def __init__(self, waits_for: str = "", tell: Callable[[str], None] = lambda fault: None) -> None:
        argv = [sys.executable, "-c", CHILD]
        self.heard = asyncio.Event()
        super().__init__(
            lambda: Child(argv, name="learner"), restarts(), waits_for, tell, clock=lambda: 1e6 * time.monotonic()
        )

    def _on_message(self, method: str, body: bytes) -> None:
        super()._on_message(method, body)
        self.heard.set()


@asynccontextmanager
async def life_of(learner: HeardLearner) -> AsyncIterator[HeardLearner]:
    """End a learner with the block."""
    try:
        yield learner
    finally:
        await learner.child.stop()


@pytest.fixture
async def learner() -> AsyncIterator[HeardLearner]:
    async with life_of(HeardLearner()) as fresh:
        yield fresh


def batch(story: str, step: int = 1) -> Batch:
    return Batch(step=step, groups=[story.encode()])


def order(story: str, loaded: Path) -> Open:
    return Open(
        model="", folder=str(loaded), database="", device=story, hyper=Hyper(), published="", published_version=0,
        published_root=b"", era=1, next_era=2, staleness=1,
    )  # fmt: skip


async def test_a_wait_for_ranks_of_other_hosts_is_told_until_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_processes, "MEETING_NOTICE_SECONDS", 0.05)
    told = list[str]()
    ranks = "the ranks of 1 other host at 10.0.0.1:29500"
    async with life_of(HeardLearner(ranks, told.append)) as remote:
        with capture_logs() as logs:
            opening = asyncio.create_task(remote.open(order("one is missing", tmp_path)))
            await until(lambda: len(logs) >= 3, 60)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await opening
    assert {(one["event"], one["ranks"]) for one in logs} == {("the learner waits for ranks", ranks)}
    assert told == [f"the learner waits for {ranks}: start them there (docs/several-gpus.md)"], "once for the page"


async def test_ranks_that_have_met_are_waited_for_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_processes, "MEETING_NOTICE_SECONDS", 3600.0)
    told = list[str]()
    async with life_of(HeardLearner("others", told.append)) as remote:
        opening = asyncio.create_task(remote.open(order("all there", tmp_path / "loaded")))
        await remote.heard.wait()
        assert remote._meeting is None
        (tmp_path / "loaded").touch()
        assert (await opening).parameters == 7
    assert told == []


async def test_a_death_during_the_computation_counts_against_the_batch(learner: HeardLearner) -> None:
    with pytest.raises(DiedComputing):
        await learner.step(batch("killed"))


async def test_a_death_by_a_rank_whose_device_failed_is_a_fault_of_the_machine(learner: HeardLearner) -> None:
    with pytest.raises(ChildError) as lost:
        await learner.step(batch("lost"))
    assert (lost.value.kind, lost.value.message) == (DEVICE_LOST, "the device failed: CUDA error: gone")


@pytest.mark.parametrize("story", ["before", "told"])
async def test_a_death_before_the_computation_or_by_sigterm_does_not_count(learner: HeardLearner, story: str) -> None:
    with pytest.raises(ChildDied) as death:
        await learner.step(batch(story))
    assert not isinstance(death.value, DiedComputing)


async def test_the_begin_of_one_step_does_not_count_for_the_next(learner: HeardLearner) -> None:
    with pytest.raises(ChildError, match="no good"):
        await learner.step(batch("error"))
    with pytest.raises(ChildDied) as death:
        await learner.step(batch("before"))
    assert not isinstance(death.value, DiedComputing)


@pytest.mark.parametrize("stop", [lambda learner: learner.renew(), lambda learner: learner.child.stop()])
async def test_an_end_requested_by_main_does_not_count(
    learner: HeardLearner, stop: Callable[[HeardLearner], object]
) -> None:
    under_way = asyncio.create_task(learner.step(batch("hangs")))
    await learner.heard.wait()
    await stop(learner)  # type: ignore[misc]
    with pytest.raises(ChildDied) as death:
        await under_way
    assert not isinstance(death.value, DiedComputing)


def test_a_death_is_told_with_what_becomes_of_the_process() -> None:
    told = list[str]()
    model_processes.on_death("scorer 2", told.append)(ChildDied("scorer 2", 7, "no memory\n"), 1.0)
    assert told == ["scorer 2 ended with 7: no memory; it is started again"]
