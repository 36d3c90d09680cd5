"""The engine on vLLM: NVIDIA GPUs, and CPUs for tests.

Rules
1. Log-probabilities are exact: log softmax, in float32, of the very logits from which the token was chosen.
2. Groups are generated together by vLLM's own continuous batching (engines.batch.request_batch), the prompt of a group
   by its prefix cache.
3. No weights are written to disk: a snapshot is read into vLLM's tensors, and a step writes the elements that changed
   into them. vLLM itself stays from one `load` to the next while the model is the same: starting it takes long.
4. An output counts only if vLLM says that all of it was computed with the version that is loaded.
5. This engine does not score: the scorer is the engine transformers.
6. A process has one vLLM: its parts share the process's distributed groups.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from echo2.engines.batch import float16_range
from echo2.engines.batch.batch_engine import BatchEngine
from echo2.engines.batch.checkpoint_patches import patches_of_changes, whole
from echo2.engines.batch.job_rollouts import JobRollouts
from echo2.engines.batch.request_batch import RequestBatch
from echo2.engines.batch.row_limit import owners_most
from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.engines.engine import Dtype, EngineError, Job, Loaded, Sample, SampleScore
from echo2.engines.vllm import availability, engine_arguments
from echo2.engines.vllm.resident_engine import ResidentEngine
from echo2.weights.diff import Change
from echo2.weights.snapshot import Snapshot


class _Live(NamedTuple):
    resident: ResidentEngine
    dtype: Dtype
    weights: SteppedWeights
    rollouts: JobRollouts
    batch: RequestBatch

    def describe_loaded(self) -> Loaded:
        return self.weights.describe_loaded(*self.resident.size)

    def apply(self, changes: Iterable[Change]) -> None:
        snapshot = self.weights.snapshot
        fitting = float16_range.check_changes(changes) if self.dtype == "float16" else changes
        self.resident.write(patches_of_changes(fitting, snapshot), snapshot.root)
        self.batch.root = snapshot.root

    def close(self) -> None:
        self.batch.clear()


class VllmEngine(BatchEngine[_Live]):
    """`engines.engine.Engine`. `device`: 'cpu', 'cuda:0'. `most_rows`: the owner's bound on rows; None: vLLM's."""

    def __init__(self, device: str, dtype: Dtype, *, most_rows: int | None = None) -> None:
        super().__init__()
        self._device, self._dtype, self._most_rows = device, dtype, most_rows
        self._resident: tuple[bytes, ResidentEngine] | None = None
        """vLLM, and the configuration of the model that it was made for."""

    def build(self, model: Path, weights: SteppedWeights) -> _Live:
        """See `BatchEngine.build`."""
        snapshot = weights.snapshot
        if self._dtype == "float16":
            _check_range(snapshot)
        resident = self._made_for(model)
        resident.write(whole(snapshot), snapshot.root, whole=True)
        rollouts = JobRollouts(model, resident.vocabulary)
        batch = RequestBatch(resident, rollouts.begin_rollouts, resident.vocabulary, snapshot.root)
        return _Live(resident, self._dtype, weights, rollouts, batch)

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        """Refuse (rule 5)."""
        raise EngineError("the engine vllm does not score: use the engine transformers")

    def close(self) -> None:
        """End vLLM and free the device."""
        self._live = None
        if self._resident is not None:
            self._resident[1].close()
            self._resident = None

    def _made_for(self, model: Path) -> ResidentEngine:
        """Return vLLM for the model of a folder; the one that runs, if it was made for the same."""
        path = model / "config.json"
        config = path.read_bytes() if path.is_file() else b""
        if self._resident is not None and self._resident[0] != config:
            self.close()
        if self._resident is None:
            resident = ResidentEngine(model, self._device, self._dtype, self._most_rows, lambda: self.on_progress())
            self._resident = config, resident
        return self._resident[1]


def create(device: str, dtype: Dtype) -> VllmEngine:
    """Make the engine for engines.registry. Raises EngineError."""
    engine_arguments.prepare()
    availability.check_device(device)
    return VllmEngine(device, dtype, most_rows=owners_most(os.environ))


def _check_range(snapshot: Snapshot) -> None:
    for entry in snapshot.tensors:
        float16_range.check(snapshot.bits(entry.name), entry.dtype, entry.name)
