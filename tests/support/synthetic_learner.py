"""A learner whose weights are random numbers: each step moves some of them by a unit in the last place, as training
does. Its sessions, exports, checkpoints and journal are the real ones."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from torch import Tensor

from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.coordinator.learner.checkpoints.checkpoint import Checkpoint, TensorFile, write_whole
from echo2.coordinator.learner.messages import Export, Hyper, Open, Stepped
from echo2.coordinator.learner.pass_sizes import PassSizes
from echo2.coordinator.learner.session import Session
from echo2.weights.documents import TensorEntry
from echo2.weights.snapshot import Snapshot, writing_snapshot
from tests.support.tiny_learner import ask, batch, read

COLUMNS = 1024
_SIZES = PassSizes()


class SyntheticTrainer:
    """A trainer of `rows` x 1024 bfloat16 weights. `rho`: share of them that a step changes."""

    ranks = 1

    def __init__(self, rows: int, rho: float, seed: int = 0) -> None:
        self._chance = np.random.default_rng(seed)
        normal = self._chance.standard_normal(rows * COLUMNS, dtype=np.float32) / 50
        self.bits = (normal.view(np.uint32) >> 16).astype(np.uint16)
        self._rows, self.rho = rows, rho

    @property
    def parameters(self) -> int:
        return len(self.bits)

    def start(self, hyper: Hyper, weights: Path | None, checkpoint: Checkpoint | None) -> None:
        """Keep the random weights."""

    def tune(self, hyper: Hyper) -> None:
        """Move weights as before."""

    def step(self, batch: TrainBatch, steps: int, sizes: PassSizes = _SIZES) -> dict[str, float]:
        if self.rho:
            index = np.flatnonzero(self._chance.random(len(self.bits), dtype=np.float32) < self.rho)
            self.bits[index] ^= 1
        return {"reward": 0.0, "success": 0.0, "learning_rate": 0.0}

    def adopt(self, snapshot: Snapshot) -> None:
        """Keep the random weights."""

    def save_snapshot(self, path: Path) -> Snapshot:
        entry = TensorEntry(name="w", dtype="BF16", shape=(self._rows, COLUMNS))
        with writing_snapshot(path, [entry], {}) as writer:
            writer.write(self.bits)
            root = writer.finish()
        return Snapshot(path, root=root)

    def save_tensors(self, folder: Path, others: Mapping[str, Tensor]) -> list[TensorFile]:
        return write_whole(folder, others)


class SyntheticRun:
    """A session over a `SyntheticTrainer`. `published`: by the main process, oldest first."""

    def __init__(self, folder: Path, trainer: SyntheticTrainer) -> None:
        self.folder, self.trainer, self.steps_made = folder, trainer, 0
        self.order = Open(
            model="", folder=str(folder), database="", device="cpu", hyper=Hyper(), published="", published_version=0,
            published_root=bytes(32), era=1, next_era=1, staleness=4, checkpoint_share=1e-9,
        )  # fmt: skip
        self.session = Session(self.order, lambda sentence: None, read, lambda order: trainer)

    @property
    def first(self) -> Export:
        export = self.session.answer_open().export
        assert export is not None
        return export

    def step(self) -> Stepped:
        self.steps_made += 1
        at = self.session.answer_open().step
        groups = msgspec.structs.replace(batch(self.steps_made, groups=1), step=at + 1).groups
        fresh = [msgspec.structs.replace(one, version=at) for one in groups]
        return self.session.step(ask(TrainBatch(step=at + 1, groups=fresh)))
