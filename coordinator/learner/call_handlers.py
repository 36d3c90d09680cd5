"""Answer the main process's calls in the learner process.

After any error of a step but `BadBatch` the session is dropped, because the step may have changed a part of the
weights. The main process then calls `open` again, and the learner continues from its last checkpoint.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from echo2.coordinator.learner.batches.batch_groups import BadBatch, read
from echo2.coordinator.learner.memory_count import count_folder
from echo2.coordinator.learner.messages import (
    BaseWritten,
    Batch,
    Checked,
    CheckModel,
    CountMemory,
    Import,
    Open,
    Opened,
    Stepped,
    WarmedUp,
    WarmUp,
    WriteAsBase,
    WriteBase,
)
from echo2.coordinator.learner.model import load
from echo2.coordinator.learner.model_check import check_model
from echo2.coordinator.learner.pass_sizes import TooLittleMemory
from echo2.coordinator.learner.session import Session
from echo2.coordinator.learner.smollm2 import import_model
from echo2.coordinator.learner.trainer import LocalTrainer, TrainerOf
from echo2.coordinator.learner.warmup import warm_up
from echo2.engines.devices.devices import choose
from echo2.engines.transformers.lost_device import lost_device
from echo2.runtime.errors import LocalFault
from echo2.weights import hf_import
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import TORCH_DTYPES, load_into, save_model

_KINDS: Final = ("cuda", "xpu", "mps", "cpu")
"""Kinds of devices on which the learner computes."""
_GOES_ON: Final = "; the learner is started again, and goes on at its checkpoint"


class NotOpen(Exception):
    """`step` before `open`, or after a step that failed."""


class DeviceLost(LocalFault):
    """The learner's device failed; no group of a batch is at fault."""


class LearnerHandlers:
    """The handlers of one learner process, with one session at a time. `begun`: called with the number of a step before
    its computation begins. `trainer_of`: trainer of one process, or of several ranks."""

    def __init__(self, begun: Callable[[int], None] = lambda step: None, trainer_of: TrainerOf = LocalTrainer) -> None:
        self._begun, self._trainer_of = begun, trainer_of
        self._session: Session | None = None

    def by_method(self) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
        """Return (request type, handler) by method, for `runtime.child_pipe.Pipe.serve`."""
        return {
            "open": (Open, self.open),
            "train": (Batch, self.step),
            "warm_up": (WarmUp, self.warm_up),
            "import_model": (Import, self.import_model),
            "check_model": (CheckModel, self.check_model),
            "write_base": (WriteBase, self.write_base),
            "write_as_base": (WriteAsBase, self.write_as_base),
            "count_memory": (CountMemory, lambda order: count_folder(Path(order.model), order.compute)),
        }

    def open(self, order: Open) -> Opened:
        self._session = None
        if order.device != "cpu":
            choose(order.device, kinds=_KINDS)
        with _faults_of_the_machine(f"the model with its state does not fit into the memory of {order.device}"):
            self._session = Session(order, report, partial(read, Path(order.database)), self._trainer_of)
        return self._session.answer_open()

    def step(self, batch: Batch) -> Stepped:
        session, self._session = self._session, None
        if session is None:
            raise NotOpen("open the learner first")
        try:
            with _faults_of_the_machine("a step does not fit into the memory of its device", _GOES_ON):
                stepped = session.step(batch, self._begun)
        except BadBatch:
            self._session = session
            raise
        self._session = session
        return stepped

    def warm_up(self, order: WarmUp) -> WarmedUp:
        return warm_up(order)

    def check_model(self, order: CheckModel) -> Checked:
        return Checked(remarks=check_model(Path(order.folder), divided=order.divided))

    def import_model(self, order: Import) -> WarmedUp:
        return import_model(order)

    def write_base(self, order: WriteBase) -> BaseWritten:
        return BaseWritten(root=save_model(load(Path(order.model), "cpu"), Path(order.path)).root)

    def write_as_base(self, order: WriteAsBase) -> BaseWritten:
        """Write a version as transformers saves the model: under the names that it was loaded from."""
        model, path = load(Path(order.model), "cpu", by_library=True), Path(order.path)
        load_into(model, version := Snapshot(Path(order.version)))
        with tempfile.TemporaryDirectory(dir=path.parent) as saved:
            torch.nn.Module.to(model, TORCH_DTYPES[version.tensors[0].dtype])
            model.save_pretrained(saved)
            return BaseWritten(root=hf_import.import_model(Path(saved), path).root)


@contextmanager
def _faults_of_the_machine(lacking: str, afterwards: str = "") -> Iterator[None]:
    """Raise TooLittleMemory where a device has no memory left, DeviceLost where it failed. `lacking`: sentence of what
    does not fit. `afterwards`: end of the sentence, of what becomes of the learner."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TooLittleMemory(
            f"{lacking}: end what else computes there, set learner.optimiser_state to host or 8bit, or divide the "
            f"model among more devices (learner.ranks): {error}"
        ) from error
    except RuntimeError as error:
        if why := lost_device(error):
            raise DeviceLost(f"{why}{afterwards}") from error
        raise


def report(sentence: str) -> None:
    """Write a sentence to the parent's log."""
    print(sentence, file=sys.stderr, flush=True)
