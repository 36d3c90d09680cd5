"""The learner process keeps its session after a bad batch, and drops it after any other error."""

from typing import Any

import pytest

from echo2.coordinator.learner import call_handlers
from echo2.coordinator.learner.batches.batch_groups import BadBatch
from echo2.coordinator.learner.call_handlers import LearnerHandlers, NotOpen
from echo2.coordinator.learner.messages import Batch, Hyper, Open, Opened, Stepped

ORDER = Open(
    model="", folder="", database="", device="cpu", hyper=Hyper(), published="", published_version=0,
    published_root=bytes(32), era=1, next_era=2, staleness=1,
)  # fmt: skip


FAILS = {2: BadBatch("twice"), 3: RuntimeError("half done")}
"""Step -> the error of the stand-in at it."""


class StandIn:
    """A session whose steps fail as `FAILS` says."""

    def __init__(self, *_: Any) -> None:
        """Open nothing."""

    def answer_open(self) -> Opened:
        return Opened(step=0, drawn=[], parameters=1)

    def step(self, batch: Batch, begun: Any) -> Stepped:
        begun(batch.step)
        if batch.step in FAILS:
            raise FAILS[batch.step]
        return Stepped(step=batch.step, metrics={}, seconds=0.0)


def test_only_a_bad_batch_leaves_the_session_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_handlers, "Session", StandIn)
    begun: list[int] = []
    handlers = LearnerHandlers(begun.append)
    with pytest.raises(NotOpen):
        handlers.step(Batch(step=1, groups=[]))
    handlers.open(ORDER)
    assert handlers.step(Batch(step=1, groups=[])).step == 1
    with pytest.raises(BadBatch):
        handlers.step(Batch(step=2, groups=[]))
    with pytest.raises(RuntimeError, match="half done"):
        handlers.step(Batch(step=3, groups=[]))
    with pytest.raises(NotOpen):
        handlers.step(Batch(step=4, groups=[]))
    handlers.open(ORDER)
    assert handlers.step(Batch(step=4, groups=[])).step == 4
    assert begun == [1, 2, 3, 4]


def test_the_process_serves_each_call_of_the_messages() -> None:
    assert list(LearnerHandlers().by_method()) == [
        "open",
        "train",
        "warm_up",
        "import_model",
        "check_model",
        "write_base",
        "write_as_base",
    ]
