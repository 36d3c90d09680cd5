"""The engine on llama.cpp: any GPU with Vulkan, Metal or CUDA, any CPU, and no torch.

Rules
1. Log-probabilities are exact: log softmax, in float32, of the very logits from which the token was chosen.
2. Groups are generated together (engines.batch.continuous_batch) by engines.llamacpp.sequence_backend.
3. No weights are written to disk: a snapshot is read into the library's memory, and a step to another version changes
   elements of that memory in place (engines.batch.batch_engine).
4. This engine does not score: the scorer is the engine transformers.
5. Before it is used, the engine computes a small model whose logits are known (engines.llamacpp.golden_model).
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from echo2.engines.batch.batch_engine import BatchEngine
from echo2.engines.batch.continuous_batch import ContinuousBatch
from echo2.engines.batch.job_rollouts import JobRollouts
from echo2.engines.batch.row_limit import RowLimit, owners_most
from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.engines.engine import Dtype, EngineError, Job, Loaded, Sample, SampleScore
from echo2.engines.llamacpp import architectures, backends, golden_model
from echo2.engines.llamacpp.library import Library
from echo2.engines.llamacpp.lora_adapter import LoraAdapter
from echo2.engines.llamacpp.resident_model import ResidentModel
from echo2.engines.llamacpp.sequence_backend import KeptPrompt, SequenceBackend
from echo2.engines.llamacpp.sequences import Sequences
from echo2.weights.diff import Change
from echo2.weights.errors import BadSnapshot
from echo2.weights.lora.adapter_config import BASE_FILE, AdapterConfig, read_config
from echo2.weights.lora.frozen_base import FrozenBase


class _Live(NamedTuple):
    model: ResidentModel
    sequences: Sequences
    weights: SteppedWeights
    rollouts: JobRollouts
    batch: ContinuousBatch[KeptPrompt]
    adapter: LoraAdapter | None

    def describe_loaded(self) -> Loaded:
        adapter = 0 if self.adapter is None else self.adapter.nbytes
        return self.weights.describe_loaded(self.model.parameters + adapter // 4, self.model.nbytes + adapter)

    def apply(self, changes: Iterable[Change]) -> None:
        if self.adapter is None:
            self.model.apply(changes, self.weights.snapshot)
        else:
            self.sequences.reset()
            self.adapter.load(self.weights.snapshot)

    def close(self) -> None:
        self.sequences.reset()
        if self.adapter is not None:
            self.adapter.close()
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
        architecture, config = architectures.read(model), _adapter_config(model)
        source = weights.snapshot if config is None else _base(model)
        resident = ResidentModel(self._library, architecture, source, self._dtype, self._handle, tell=self.on_progress)
        adapter = None
        try:
            if config is not None:
                adapter = LoraAdapter(self._library, resident, config)
                adapter.load(weights.snapshot)
        except Exception:
            resident.close()
            raise
        begun = adapter.attach if adapter is not None else lambda context: None
        sequences = Sequences(resident, self._dtype, self._threads, begun=begun)
        backend = SequenceBackend(
            sequences, resident.vocabulary, lambda: backends.free_memory(self._library, self._handle), self._threads
        )
        rollouts = JobRollouts(model, resident.vocabulary)
        batch = ContinuousBatch(backend, rollouts.begin_rollouts, self._limit, self._clock)
        return _Live(resident, sequences, weights, rollouts, batch, adapter)

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        """Refuse (rule 4)."""
        raise EngineError("the engine llamacpp does not score: use the engine transformers")


def _adapter_config(folder: Path) -> AdapterConfig | None:
    """Read the adapter's settings. A fault of them is the folder's, and no other version mends it."""
    try:
        return read_config(folder)
    except BadSnapshot as error:
        raise EngineError(str(error)) from error


def _base(folder: Path) -> FrozenBase:
    try:
        return FrozenBase(folder / BASE_FILE)
    except (BadSnapshot, FileNotFoundError) as error:
        raise EngineError(f"{error}: start again, which fetches damaged files of the model anew") from error


def create(device: str, dtype: Dtype) -> LlamaEngine:
    """Make the engine for engines.registry, on as many threads as the environment says. Raises EngineError."""
    library, threads = backends.library(), int(os.environ.get("OMP_NUM_THREADS", "1"))
    golden_model.check(library, device, dtype, threads)
    return LlamaEngine(library, device, dtype, threads=threads, most_rows=owners_most(os.environ))
