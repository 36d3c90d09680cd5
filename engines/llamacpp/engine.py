"""The engine on llama.cpp: any GPU with Vulkan, Metal or CUDA, any CPU, and no torch.

Rules
1. Log-probabilities are exact: log softmax, in float32, of the very logits from which the token was chosen.
2. Groups are generated together (engines.continuous_batch) by engines.llamacpp.sequence_backend.
3. No weights are written to disk: a snapshot is read into the library's memory, and a step to another version changes
   elements of that memory in place (engines.batch_engine).
4. This engine does not score: the scorer is the engine transformers.
5. Before it is used, the engine computes a small model whose logits are known (engines.llamacpp.golden_model).
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from engines.batch_engine import BatchEngine
from engines.continuous_batch import ContinuousBatch
from engines.engine import Dtype, EngineError, Job, Loaded, Sample, SampleScore
from engines.job_rollouts import JobRollouts
from engines.llamacpp import architectures, backends, golden_model
from engines.llamacpp.library import Library
from engines.llamacpp.resident_model import ResidentModel
from engines.llamacpp.sequence_backend import KeptPrompt, SequenceBackend
from engines.llamacpp.sequences import Sequences
from engines.row_limit import RowLimit, owners_most
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

    def apply(self, changes: Iterable[Change]) -> None:
        self.model.apply(changes, self.weights.snapshot)

    def close(self) -> None:
        self.sequences.reset()
        self.model.close()


class LlamaEngine(BatchEngine[_Live]):
    """`engines.engine.Engine`. `device`: 'cpu', 'vulkan:0', 'metal', 'cuda:1'. `most_rows`: the owner's bound on rows;
    None: as many as gain."""

    def __init__(
        self, library: Library, device: str, dtype: Dtype, *, threads: int = 1, most_rows: int | None = None
    ) -> None:
        super().__init__()
        self._library, self._dtype, self._threads = library, dtype, threads
        self._handle = backends.device(library, device)
        most = int(library.llama_max_parallel_sequences())
        self._limit = RowLimit(min(most, most_rows or most))
        self._clock = time.process_time if self._handle is None else time.monotonic

    def build(self, model: Path, weights: SteppedWeights) -> _Live:
        """See `BatchEngine.build`."""
        architecture = architectures.read(model)
        resident = ResidentModel(self._library, architecture, weights.snapshot, self._dtype, self._handle)
        sequences = Sequences(resident, self._dtype, self._threads)
        backend = SequenceBackend(
            sequences, resident.vocabulary, lambda: backends.free_memory(self._library, self._handle)
        )
        rollouts = JobRollouts(model, resident.vocabulary)
        batch = ContinuousBatch(backend, rollouts.begun, self._limit, self._clock)
        return _Live(resident, sequences, weights, rollouts, batch)

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        """Refuse (rule 4)."""
        raise EngineError("the engine llamacpp does not score: use the engine transformers")


def create(device: str, dtype: Dtype) -> LlamaEngine:
    """Make the engine for engines.registry, on as many threads as the environment says. Raises EngineError."""
    library, threads = backends.library(), int(os.environ.get("OMP_NUM_THREADS", "1"))
    golden_model.check(library, device, dtype, threads)
    return LlamaEngine(library, device, dtype, threads=threads, most_rows=owners_most(os.environ))
