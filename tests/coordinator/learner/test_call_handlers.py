"""The learner process keeps its session after a bad batch, and drops it after any other error."""

from typing import Any

import pytest
import torch
from msgspec import structs

from echo2.coordinator.learner import call_handlers
from echo2.coordinator.learner.batches.batch_groups import BadBatch
from echo2.coordinator.learner.call_handlers import DeviceLost, LearnerHandlers, NotOpen
from echo2.coordinator.learner.messages import DEVICE_LOST, Batch, Hyper, Open, Opened, Stepped
from echo2.coordinator.learner.pass_sizes import TooLittleMemory
from echo2.engines.devices.devices import NoDevice
from echo2.runtime.errors import LocalFault

ORDER = Open(
    model="", folder="", database="", device="cpu", hyper=Hyper(), published="", published_version=0,
    published_root=bytes(32), era=1, next_era=2, staleness=1,
)  # fmt: skip


FAILS = {
    2: BadBatch("twice"),
    3: RuntimeError("half done"),
    8: torch.OutOfMemoryError("2 GiB are free"),
    9: RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported"),
}
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
        "count_memory",
    ]


@pytest.mark.parametrize(
    ("device", "sentence"), [("gpu", "'gpu' is no device: use auto, "), ("cuda:7", "cuda:7 does not exist: ")]
)
def test_a_device_that_does_not_exist_is_told_before_anything_is_opened(device: str, sentence: str) -> None:
    with pytest.raises(NoDevice, match=sentence):
        LearnerHandlers().open(structs.replace(ORDER, device=device))


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (FAILS[8], TooLittleMemory, r"memory of cpu: .* learner.optimiser_state to host.*2 GiB are free$"),
        (FAILS[9], DeviceLost, "^the device failed: CUDA error: unspecified launch failure$"),
    ],
    ids=["no memory", "a card that is lost"],
)
def test_a_device_that_cannot_take_the_model_is_a_fault_of_the_machine(
    error: Exception, kind: type[LocalFault], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> StandIn:
        raise error

    monkeypatch.setattr(call_handlers, "Session", failing)
    with pytest.raises(kind, match=sentence):
        LearnerHandlers().open(ORDER)


def test_memory_that_lacks_behind_the_passes_of_a_step_is_a_fault_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As another program took it, where the snapshot is made."""
    monkeypatch.setattr(call_handlers, "Session", StandIn)
    handlers = LearnerHandlers()
    handlers.open(ORDER)
    with pytest.raises(TooLittleMemory, match=r"^a step does not fit .* 2 GiB are free$"):
        handlers.step(Batch(step=8, groups=[]))
    with pytest.raises(NotOpen):
        handlers.step(Batch(step=8, groups=[]))


def test_a_card_that_is_lost_in_a_step_is_a_fault_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_handlers, "Session", StandIn)
    handlers = LearnerHandlers()
    handlers.open(ORDER)
    with pytest.raises(DeviceLost) as lost:
        handlers.step(Batch(step=9, groups=[]))
    assert DeviceLost.__name__ == DEVICE_LOST, "the name by which the coordinator knows it"
    sentence = "the device failed: CUDA error: unspecified launch failure; the learner is started again, "
    assert str(lost.value) == f"{sentence}and goes on at its checkpoint"
    with pytest.raises(NotOpen):
        handlers.step(Batch(step=4, groups=[]))
