"""The default engine: PyTorch and transformers on any CPU or GPU, with a decode loop of its own.

1. Log-probabilities are exact: log softmax, in float32, of the same logits from which the token was chosen.
2. Groups are generated together (engines.batch.continuous_batch) by engines.transformers.decoder.
3. Scoring is teacher-forced (engines.transformers.scoring).
4. By default the engine computes in float32: bf16 snapshots are cast up, without loss. In fp32 a decode step and a
   teacher-forced pass agree to about 1e-5, independent of the rest of the batch. On a CPU the products of large layers
   are oneDNN's (engines.transformers.packed_linear). In float16 a weight that it cannot hold is refused, at loading and
   at a step (engines.batch.float16_range), and so is a model whose values leave its range at loading (`Decoder.check`).
5. A step to another version patches the live tensors in place (engines.batch.batch_engine).
6. What config.json says decides first whether a model can take part (engines.transformers.model_config).
7. A model is built without values (engines.transformers.unfilled_model) and counted before its weights get memory: one
   beyond the memory at hand would take all of it, from every program here, until the kernel kills some process. For a
   GPU the host holds no copy of the weights. Three passes check it: two of `Decoder.check`, one of the model's own.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from echo2.engines.batch import float16_range
from echo2.engines.batch.batch_engine import BatchEngine
from echo2.engines.batch.continuous_batch import ContinuousBatch, OutOfMemory
from echo2.engines.batch.job_rollouts import JobRollouts
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.batch.row_limit import RowLimit, owners_most
from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.engines.engine import Dtype, EngineError, GroupToScore, Job, Loaded, NoMemory, Sample, SampleScore
from echo2.engines.transformers import model_config, output_layer, packed_linear
from echo2.engines.transformers.decoder import NO_MEMORY, ComputedPrompt, Decoder
from echo2.engines.transformers.device_memory import free_memory
from echo2.engines.transformers.lost_device import lost_device
from echo2.engines.transformers.low_rank import adapt
from echo2.engines.transformers.model_config import UnsuitableModel
from echo2.engines.transformers.roundings import round_as_asked, tf32_rounding
from echo2.engines.transformers.scoring import GroupScorer
from echo2.engines.transformers.step_graphs import recorder_of
from echo2.engines.transformers.unfilled_model import allocate, build_unfilled
from echo2.weights.diff import Change
from echo2.weights.errors import WeightsError
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import load_into, patch

NO_ROOM: Final = (
    "the device has no memory left for this model: end other programs that use it, or choose another device or engine"
)


class _Live(NamedTuple):
    model: Any  # transformers.PreTrainedModel, whose methods carry no types
    weights: SteppedWeights
    rollouts: JobRollouts
    batch: ContinuousBatch[ComputedPrompt]
    scorer: GroupScorer

    def describe_loaded(self) -> Loaded:
        parameters = list(self.model.parameters())
        return self.weights.describe_loaded(
            sum(one.numel() for one in parameters), sum(one.nbytes for one in parameters)
        )

    def apply(self, changes: Iterable[Change]) -> None:
        with _translate_errors():
            fitting = float16_range.check_changes(changes) if self.model.dtype == torch.float16 else changes
            patch(self.model, fitting, self.weights.snapshot.aliases)
            packed_linear.forget(self.model)

    def close(self) -> None:
        """Do nothing: the tensors are freed with the last reference to them."""


class TransformersEngine(BatchEngine[_Live]):
    """`engines.engine.Engine`. `device`: 'cpu', 'cuda', 'cuda:1', 'mps'. `limit`: how many rows run at once;
    None: as many as gain (engines.batch.row_limit)."""

    def __init__(self, device: str = "cpu", dtype: Dtype = "float32", *, limit: RowLimit | None = None) -> None:
        super().__init__()
        self._device = torch.device(device)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._limit = limit or RowLimit()

    def build(self, model: Path, weights: SteppedWeights) -> _Live:
        """See `BatchEngine.build`."""
        with _translate_errors():
            built = _build(model, self._dtype, free_memory(self._device))
            allocate(built, self._device)
            _adapt(built, model)
            _check_range(weights.snapshot, self._dtype)
            load_into(built, weights.snapshot, self.on_progress)
            round_as_asked(built, os.environ)
            if not tf32_rounding(os.environ):
                packed_linear.pack(built)
            decoder = self.decoder(built)
            decoder.check()
            packed_linear.forget(built)
        rollouts = JobRollouts(model, built.config.get_text_config().vocab_size)
        batch = ContinuousBatch(decoder, rollouts.begin_rollouts, self._limit, decoder.clock)
        return _Live(built, weights, rollouts, batch, GroupScorer(built))

    def decoder(self, model: Any) -> Decoder:
        return Decoder(model, self._device, recorder=recorder_of(self._device, os.environ))

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        """See `Engine.score`."""
        (outcome,) = self.score_groups([GroupToScore(job, samples)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def pass_tokens(self) -> int:
        """See `ScoresTogether.pass_tokens`."""
        return self._live_model().scorer.pass_tokens

    def score_groups(self, groups: Sequence[GroupToScore]) -> list[list[SampleScore] | Exception]:
        """See `ScoresTogether.score_groups`."""
        return self._live_model().scorer.score(groups)


def create(device: str, dtype: Dtype) -> TransformersEngine:
    """Make the engine for engines.registry, on as many threads as the environment says."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return TransformersEngine(device, dtype, limit=RowLimit(owners_most(os.environ)))


def _adapt(built: Any, folder: Path) -> None:
    """See `low_rank.adapt`. A fault of the base is the folder's, and no other version mends it."""
    try:
        adapt(built, folder)
    except (WeightsError, FileNotFoundError) as error:
        raise EngineError(f"{error}: start again, which fetches damaged files of the model anew") from error


def _check_range(snapshot: Snapshot, dtype: torch.dtype) -> None:
    if dtype == torch.float16:
        for entry in snapshot.tensors:
            float16_range.check(snapshot.bits(entry.name), entry.dtype, entry.name)


def _build(folder: Path, dtype: torch.dtype, room: int) -> Any:
    if not (folder / "config.json").is_file():
        raise EngineError(f"{folder} has no config.json: give the folder of a model")
    try:
        config = model_config.read(folder)
        nbytes = model_config.count_weight_bytes(config, dtype)
        if nbytes > room:
            raise MemoryError(f"it takes {nbytes >> 20:,} MiB, and {room >> 20:,} MiB are free")
        model: Any = build_unfilled(config, dtype)
    except UnsuitableModel as error:
        raise EngineError(f"{folder}: transformers cannot build this model from its config.json: {error}") from error
    except Exception as error:  # the library has no root of its errors, and each field of config.json may raise any
        if _no_memory(error):
            raise
        why = f"{type(error).__name__}: {error}"
        raise EngineError(f"{folder}: the installed transformers cannot build this model ({why})") from error
    return model.eval().requires_grad_(False)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise NoMemory where memory lacks, EngineError of a head that is not known, ProgramLost where the device failed:
    this process cannot use it any more."""
    try:
        yield
    except output_layer.UnknownOutput as error:
        raise EngineError(str(error)) from error
    except (RuntimeError, MemoryError, OutOfMemory) as error:
        if not _no_memory(error):
            if why := lost_device(error):
                raise ProgramLost(why) from error
            raise
        raise NoMemory(f"{NO_ROOM} ({str(error) or 'no memory'})") from error


def _no_memory(error: Exception) -> bool:
    """Tell whether memory lacks."""
    if isinstance(error, (MemoryError, OutOfMemory, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)
