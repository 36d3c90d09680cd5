"""The engine on llama.cpp: any GPU with Vulkan, Metal or CUDA, any CPU, and no torch.

Rules
1. Log-probabilities are exact: log softmax, in float32, of the very logits from which the token was chosen.
2. Groups are generated together (engines.continuous_batch) by engines.llamacpp.sequence_backend.
3. No weights are written to disk: a snapshot is read into the library's memory, and a step to another version changes
   the folder on disk first, then the same elements in that memory. If the second part fails, the model is dropped: the
   folder on disk is whole, and is loaded again.
4. This engine does not score: the scorer is the engine transformers.
5. Before it is used, the engine computes a small model whose logits are known (engines.llamacpp.golden_model).
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from engines.continuous_batch import ContinuousBatch
from engines.engine import Dtype, EngineError, EngineRows, Finished, Job, Loaded, Sample, SampleScore
from engines.job_rollouts import JobRollouts
from engines.llamacpp import architectures, backends, golden_model
from engines.llamacpp.library import Library
from engines.llamacpp.resident_model import ResidentModel
from engines.llamacpp.sequence_backend import KeptPrompt, SequenceBackend
from engines.llamacpp.sequences import Sequences
from engines.row_limit import RowLimit
from engines.stepped_weights import SteppedWeights
from weights.diff import Change


class _Live(NamedTuple):
    model: ResidentModel
    sequences: Sequences
    weights: SteppedWeights
    rollouts: JobRollouts
    batch: ContinuousBatch[KeptPrompt]

    def loaded(self) -> Loaded:
        parameters = sum(entry.elements for entry in self.weights.snapshot.tensors)
        return self.weights.loaded(parameters, self.model.nbytes)


class LlamaEngine:
    """`engines.engine.Engine`. `device`: 'cpu', 'vulkan:0', 'metal', 'cuda:1'. `most_rows`: the owner's bound on rows;
    None: as many as gain."""

    def __init__(
        self, library: Library, device: str, dtype: Dtype, *, threads: int = 1, most_rows: int | None = None
    ) -> None:
        self._library, self._dtype, self._threads = library, dtype, threads
        self._handle = backends.device(library, device)
        most = int(library.llama_max_parallel_sequences())
        self._limit = RowLimit(min(most, most_rows or most))
        self._clock = time.process_time if self._handle is None else time.monotonic
        self._live: _Live | None = None

    def load(self, model: Path, weights: Path) -> Loaded:
        """See `Engine.load`. Raises EngineError (folder, device), weights.errors.BadSnapshot, StoreCorrupt."""
        architecture = architectures.read(model)
        opened = SteppedWeights(weights)
        self._drop()
        resident = ResidentModel(self._library, architecture, opened.snapshot, self._dtype, self._handle)
        sequences = Sequences(resident, self._dtype, self._threads)
        backend = SequenceBackend(
            sequences, resident.vocabulary, lambda: backends.free_memory(self._library, self._handle)
        )
        rollouts = JobRollouts(model, resident.vocabulary)
        batch = ContinuousBatch(backend, rollouts.begun, self._limit, self._clock)
        self._live = _Live(resident, sequences, opened, rollouts, batch)
        return self._live.loaded()

    def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        """See `Engine.step_by`; rule 3 holds."""
        return self._write(self._loaded().weights.step_by(payload, root, keep))

    def step_to(self, root: bytes) -> Loaded:
        """See `Engine.step_to`; rule 3 holds for each step."""
        for changes in self._loaded().weights.step_to(root):
            self._write(changes)
        return self._loaded().loaded()

    def begin(self, ticket: int, job: Job) -> None:
        """See `Engine.begin`."""
        live = self._loaded()
        live.rollouts.check(job)
        live.batch.begin(ticket, job)

    def cancel(self, ticket: int) -> None:
        """See `Engine.cancel`."""
        if self._live is not None:
            self._live.batch.cancel(ticket)

    def step(self) -> list[Finished]:
        """See `Engine.step`."""
        return self._loaded().batch.step()

    @property
    def rows(self) -> EngineRows:
        """See `Engine.rows`."""
        return self._live.batch.rows if self._live is not None else EngineRows()

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        """Refuse (rule 4)."""
        raise EngineError("the engine llamacpp does not score: use the engine transformers")

    def _loaded(self) -> _Live:
        if self._live is None:
            raise EngineError("no weights are loaded: call load first")
        return self._live

    def _write(self, changes: Iterable[Change]) -> Loaded:
        live, self._live = self._loaded(), None
        try:
            live.model.apply(changes, live.weights.snapshot)
        except BaseException:
            _free(live)
            raise
        self._live = live
        return live.loaded()

    def _drop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            _free(live)


def _free(live: _Live) -> None:
    live.sequences.reset()
    live.model.close()


def create(device: str, dtype: Dtype) -> LlamaEngine:
    """Make the engine for engines.registry, on as many threads as the environment says. Raises EngineError."""
    library, threads = backends.library(), int(os.environ.get("OMP_NUM_THREADS", "1"))
    golden_model.check(library, device, dtype, threads)
    return LlamaEngine(library, device, dtype, threads=threads)
