"""Define what the session needs of the model that it trains, and do it in one process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo2.coordinator.learner import model, step
from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.coordinator.learner.checkpoints.checkpoint import Checkpoint, TensorFile, write_whole
from echo2.coordinator.learner.layers_made_again import make_layers_again
from echo2.coordinator.learner.messages import Hyper, Open
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.pass_memory import PassMemory, measure
from echo2.coordinator.learner.pass_sizes import PassSizes, too_long
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import load_into, save_model


class Trainer(Protocol):
    """A model with its optimiser, on one rank or on several. After an error it must be made anew."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""

    @property
    def parameters(self) -> int:
        """The number of parameters, tied ones once."""

    def start(self, hyper: Hyper, weights: Path | None, checkpoint: Checkpoint | None) -> None:
        """Take the weights of a snapshot, of the base without one; then the state of a checkpoint, if there is one.
        Raises BadTensors, BadSnapshot, TooLittleMemory."""

    def tune(self, hyper: Hyper) -> None:
        """Take other settings for the steps to come: those that are live."""

    def step(self, batch: TrainBatch, steps: int, sizes: PassSizes) -> dict[str, float]:
        """Make one step; return its metrics. `steps`: earlier ones of this optimiser. `sizes`: sizes of its passes,
        which the trainer chooses unless they are given. Raises BadBatch before any change; TooLittleMemory."""

    def adopt(self, snapshot: Snapshot) -> None:
        """Take the weights of a snapshot for the masters; the moments stay. Raises BadSnapshot, BadTensors."""

    def save_snapshot(self, path: Path) -> Snapshot:
        """Write the present weights, durably. Raises DiskFull."""

    def save_tensors(self, folder: Path, others: Mapping[str, Tensor]) -> list[TensorFile]:
        """Write the state into files of a checkpoint's folder, durably. `others`: further tensors. Raises DiskFull."""


TrainerOf = Callable[[Open], Trainer]
"""(order to open the learner) -> its trainer, the base loaded. Raises BadModelFolder, NotFinetunable, BadSnapshot."""


class LocalTrainer:
    """A trainer of one process."""

    ranks: Final = 1

    def __init__(self, order: Open) -> None:
        """Load the base. Raises BadModelFolder, NotFinetunable, BadSnapshot."""
        self._order = order
        model.begin_arithmetic(order.threads, order.hyper.seed)
        self._model = model.load(Path(order.model), order.device)
        make_layers_again(self._model, order.hyper.recompute, order.device)
        self._reference: PreTrainedModel | None = None
        if order.hyper.kl_coefficient > 0:
            compute = model.compute_type(order.hyper.compute_dtype, order.device)
            self._reference = model.load(Path(order.model), order.device, compute)
            model.cast_parameters(self._reference, compute)  # an adapter's base
        self._optimiser: Optimiser | None = None
        self._tokens = order.hyper.microbatch_tokens
        self._memory: PassMemory | None = None

    @property
    def parameters(self) -> int:
        """See `Trainer`."""
        return model.parameter_count(self._model)

    def start(self, hyper: Hyper, weights: Path | None, checkpoint: Checkpoint | None) -> None:
        """See `Trainer`."""
        if weights is not None:
            load_into(self._model, Snapshot(weights))
        self._optimiser = None  # its memory first
        self._optimiser = Optimiser(self._model, hyper)
        if checkpoint is not None:
            self._optimiser.restore(checkpoint.tensors)
        self._memory = None
        memory = self._known_memory()
        if memory is not None and memory.lacks(self._order.limit, self._model.device):
            raise too_long(self._order.limit)

    def tune(self, hyper: Hyper) -> None:
        """See `Trainer`."""
        self._started.hyper = hyper

    @property
    def _started(self) -> Optimiser:
        assert self._optimiser is not None, "start comes first"
        return self._optimiser

    def step(self, batch: TrainBatch, steps: int, sizes: PassSizes) -> dict[str, float]:
        """See `Trainer`. A halved size stays."""
        sizes.begin(self._fitting())
        metrics = step.train_step(
            self._model,
            self._started,
            batch,
            self._started.hyper,
            steps=steps,
            reference=self._reference,
            limit=self._order.limit,
            ends=self._order.ends,
            sizes=sizes,
        )
        self._tokens = sizes.tokens_kept(self._tokens)
        return metrics

    def _known_memory(self) -> PassMemory | None:
        """Return what a pass takes, as far as that is known."""
        try:
            self._memory = self._memory or measure(self._model, self._started)
        except torch.OutOfMemoryError:
            self._started.drop_gradients()
        return self._memory

    def _fitting(self) -> int:
        """Return the most tokens of a micro-batch that fit into the free memory, as far as that is known."""
        memory = self._known_memory()
        return self._tokens if memory is None else memory.fitting_now(self._tokens, self._model.device)

    def adopt(self, snapshot: Snapshot) -> None:
        """See `Trainer`."""
        load_into(self._model, snapshot)
        self._started.take_published()

    def save_snapshot(self, path: Path) -> Snapshot:
        """See `Trainer`."""
        return save_model(self._model, path)

    def save_tensors(self, folder: Path, others: Mapping[str, Tensor]) -> list[TensorFile]:
        """See `Trainer`."""
        return write_whole(folder, self._started.tensors(others))
