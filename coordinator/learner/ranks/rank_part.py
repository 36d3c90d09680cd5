"""Do one rank's part of what the learner does: its rows of the model, its share of a step, its parts of the files.

Rules
1. `check` and `train` are calls that all ranks make together: each computes with rows of all. The others use nothing of
   another rank.
2. A step in which a rank runs out of memory is left by all (learner/ranks/rank_group.py, rule 4). The model is built
   anew around the rows of before, for the ranks' new meeting, and the step goes on with smaller passes.
3. A rank writes its rows and no other's: into the snapshot at their places (weights/snapshot_parts.py), and into a
   file of its own in the checkpoint. Rank 0 writes what is not divided.
"""

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo2.coordinator.learner import model as model_folder
from echo2.coordinator.learner.batches.dealing import Share
from echo2.coordinator.learner.batches.hidden_states import cost_of
from echo2.coordinator.learner.checkpoints.checkpoint import TensorFile, write_tensors
from echo2.coordinator.learner.checkpoints.row_sources import MASTER, CheckpointRows, SnapshotRows
from echo2.coordinator.learner.layers_made_again import make_layers_again
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.pass_memory import PassMemory, measure
from echo2.coordinator.learner.pass_sizes import PassSizes, free
from echo2.coordinator.learner.ranks.local_rows import first_row, local
from echo2.coordinator.learner.ranks.rank_group import RankGroup
from echo2.coordinator.learner.ranks.sharded_model import build
from echo2.coordinator.learner.step import StepProgress, Updates, train_share
from echo2.weights import snapshot_parts
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import aliases_of, entries_of, published_bits, published_tensors


class RankPart:
    """This rank's part of a model that several train. `base`: the model's folder. `device`: `learner.device`."""

    def __init__(
        self, group: RankGroup, base: Path, device: str, threads: int, hyper: Hyper, *, reference: bool
    ) -> None:
        """Load the base. Raises BadModelFolder, BadSnapshot."""
        model_folder.begin_arithmetic(threads, hyper.seed)
        self._group, self._base, self._device, self._hyper = group, base, group.device(device), hyper
        self._with_reference, self._tokens = reference, hyper.microbatch_tokens
        self._optimiser: Optimiser | None = None
        self._memory: PassMemory | None = None
        self._load()

    def _load(self) -> None:
        """Load the base for the ranks' present meeting."""
        self._mesh = self._group.mesh(self._device)
        self._model: PreTrainedModel | None = self._base_model()
        make_layers_again(self._model, self._hyper.recompute, self._device)
        self._reference = self._base_model() if self._with_reference else None

    def _base_model(self) -> PreTrainedModel:
        compute = model_folder.compute_type(self._hyper.compute_dtype, self._device)
        model = build(self._base, self._mesh, self._device, compute)
        rows = self._rows_of(model, Snapshot(self._base / model_folder.WEIGHTS[0]))
        for name, parameter in model.named_parameters():
            own = rows.get(f"{MASTER}{name}")
            if own is None or own.shape != local(parameter).shape:
                raise model_folder.BadModelFolder(f"{self._base} has no {name} of shape {tuple(parameter.shape)}")
            local(parameter).copy_(own)
        return model

    def check(self) -> None:
        """Check the base, together with the other ranks. Raises NotFinetunable on all of them."""
        for model in filter(None, (self._model, self._reference)):
            model_folder.check_head(model)
            cost_of(model)

    def _rows_of(self, model: PreTrainedModel, snapshot: Snapshot) -> SnapshotRows:
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return SnapshotRows(snapshot, {own[0]: own for own in names.values()}, self._group.rank, self._group.count)

    @property
    def parameters(self) -> int:
        """The number of the whole model's parameters."""
        return model_folder.parameter_count(self._loaded)

    @property
    def _loaded(self) -> PreTrainedModel:
        assert self._model is not None, "a step that was left has ended"
        return self._model

    def start(self, hyper: Hyper, weights: Path | None, checkpoint: Sequence[Path]) -> None:
        """Take the masters from a snapshot, or from the base without one; then the state of a checkpoint's files, if
        there are any. Raises BadTensors, BadSnapshot."""
        self._hyper = hyper
        self._optimiser = None  # its memory first
        self._optimiser = Optimiser(self._loaded, hyper, self._group)
        self._optimiser.restore(
            self._rows_of(self._loaded, Snapshot(weights or self._base / model_folder.WEIGHTS[0]))
        )  # fmt: skip
        if checkpoint:
            self._optimiser.restore(CheckpointRows(checkpoint, self._group.rank, self._group.count))

    def tune(self, hyper: Hyper) -> None:
        """Take other settings for the steps to come: those that are live."""
        self._hyper = self._started.hyper = hyper

    def adopt(self, weights: Path) -> None:
        """Take the masters from a snapshot; the moments stay. Raises BadTensors, BadSnapshot."""
        self._started.restore(self._rows_of(self._loaded, Snapshot(weights)))

    def train(self, share: Share, steps: int, limit: int, sizes: PassSizes) -> Updates:
        """Make this rank's part of a step. `steps`, `limit`: steps and limit of `train_step`. Raises TooLittleMemory on
        all ranks."""
        sizes.begin(self._tokens)
        progress = StepProgress(sizes)
        while True:
            try:
                if not sizes.halvings:
                    sizes.begin(self._fitting())
                done = train_share(
                    self._loaded, self._started, share, self._hyper, progress, steps=steps, reference=self._reference,
                    limit=limit, ranks=self._group,
                )  # fmt: skip
                self._tokens = sizes.tokens_kept(self._tokens)
                return done
            except RuntimeError as error:  # of a connection, where another rank has left
                error.add_note(traceback.format_exc())
                lost = error.with_traceback(None)  # its frames refer to the model
            self._meet_again(lost)
            sizes.halve(self._group.most(share.longest))

    def _fitting(self) -> int:
        """Return the most tokens of a micro-batch that fit into the free memory of all ranks."""
        self._memory = self._memory or measure(self._loaded, self._started)
        own = self._tokens if self._memory is None else self._memory.fitting_now(self._tokens, self._loaded.device)
        return -self._group.most(-own)

    def _meet_again(self, lost: RuntimeError) -> None:
        """Leave a step, and meet for it again with the model and state of before. `lost`: why it was left; raised if no
        rank lacked memory."""
        optimiser = self._started
        optimiser.leave_model()
        self._model = self._reference = self._optimiser = None
        del self._mesh
        free(self._device)
        self._group.leave()
        if not self._group.meet_again(lacking=isinstance(lost, torch.OutOfMemoryError)):
            raise lost
        self._load()
        self._optimiser = Optimiser(self._loaded, self._hyper, self._group)
        self._optimiser.restore(optimiser.tensors())

    @property
    def _started(self) -> Optimiser:
        assert self._optimiser is not None, "start comes first"
        return self._optimiser

    def begin_snapshot(self, path: Path) -> Path:
        """Begin the snapshot of the present weights; return the hidden file, for `write_rows` of all ranks."""
        tensors = published_tensors(self._loaded)
        aliases = aliases_of(self._loaded, {name: local(tensor) for name, tensor in tensors.items()})
        return snapshot_parts.begin(path, entries_of(tensors, dtype=torch.bfloat16, aliases=aliases), aliases)

    def write_rows(self, partial: Path) -> None:
        """Write this rank's rows of the snapshot. Raises BadSnapshot, DiskFull."""
        tensors = published_tensors(self._loaded)
        with snapshot_parts.RowWriter(partial) as writer:
            for name in writer.names:
                own = local(tensors[name])
                if own is not tensors[name] or self._group.rank == 0:
                    writer.write(name, first_row(tensors[name]), published_bits(own))

    def hash_tensors(self, partial: Path) -> list[bytes]:
        """Return the hashes of the snapshot's tensors that are this rank's to hash: each n-th."""
        names = [entry.name for entry in Snapshot(partial).tensors]
        return snapshot_parts.hashes(partial, names[self._group.rank :: self._group.count])

    def write_part(self, folder: Path, others: Mapping[str, Tensor]) -> TensorFile:
        """Write this rank's part of a checkpoint. `others`: tensors that are not divided. Raises DiskFull."""
        name = f"tensors-{self._group.rank + 1:05d}-of-{self._group.count:05d}.safetensors"
        return write_tensors(folder / name, self._started.tensors(others))
