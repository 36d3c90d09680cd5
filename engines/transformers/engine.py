"""The default engine: PyTorch and transformers on any CPU or GPU, with a decode loop of its own.

1. Log-probabilities are exact: log softmax, in float32, of the same logits from which the token was chosen.
2. Groups are generated together (engines.continuous_batch) by engines.transformers.decoder.
3. Scoring is teacher-forced (engines.transformers.scoring).
4. By default the engine computes in float32: bf16 snapshots are cast up, without loss. In fp32 a decode step and a
   teacher-forced pass agree to about 1e-5, independent of the rest of the batch. On a CPU the products of large layers
   are oneDNN's (engines.transformers.packed_linear).
5. A step to another version changes the folder on disk first, then the live tensors, by the same list of changes. If
   the second part fails, the live tensors are dropped: the folder on disk is whole, and is loaded again.
6. No code comes with a model: config.json names an architecture of the installed library.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines.continuous_batch import ContinuousBatch, OutOfMemory
from engines.engine import Dtype, EngineError, EngineRows, Finished, GroupToScore, Job, Loaded, Sample, SampleScore
from engines.rollout_state import RolloutState
from engines.row_limit import RowLimit
from engines.transformers import packed_linear
from engines.transformers.decoder import ComputedPrompt, Decoder
from engines.transformers.input_check import check_job
from engines.transformers.scoring import GroupScorer
from tasks import registry
from tasks.task import Tokenizer
from tasks.tokenizer import load as load_text
from weights.diff import Change
from weights.errors import BadSnapshot, WrongBase
from weights.journaled import Rolling
from weights.snapshot import Snapshot
from weights.torch_io import load_into, patch


class _Live(NamedTuple):
    model: Any  # transformers.PreTrainedModel, whose methods carry no types
    folder: Path
    rolling: Rolling | None
    loaded: Loaded
    batch: ContinuousBatch[ComputedPrompt]
    scorer: GroupScorer


class TransformersEngine:
    """`engines.engine.Engine`. `device`: 'cpu', 'cuda', 'cuda:1', 'mps'. `most_rows`: the owner's bound on rows; None:
    as many as gain (engines.row_limit)."""

    def __init__(self, device: str = "cpu", dtype: Dtype = "float32", *, most_rows: int | None = None) -> None:
        self._device = torch.device(device)
        self._dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        # 64-bit integer operations are incomplete on MPS.
        self._noise_device = torch.device("cpu") if self._device.type == "mps" else self._device
        self._limit = RowLimit(most_rows)
        self._live: _Live | None = None
        self._texts: dict[int, Tokenizer] = {}

    def load(self, model: Path, weights: Path) -> Loaded:
        """See `Engine.load`. Raises EngineError (folder), weights.errors.BadSnapshot, StoreCorrupt."""
        rolling = Rolling(weights) if weights.is_dir() else None
        opened = Snapshot(rolling.path if rolling else weights)
        if rolling and rolling.root != opened.root:
            raise BadSnapshot(
                f"{rolling.path} is damaged (its bytes do not have root {rolling.root.hex()[:16]}): fetch it again"
            )
        self._live = None
        with _translated():
            built = _build(model, self._dtype).to(self._device)
            load_into(built, opened)
            packed_linear.pack(built)
            _check_head(built)
            decoder = Decoder(built, self._device)
            decoder.check()
            packed_linear.forget(built)
        self._texts = {}
        batch = ContinuousBatch(decoder, self._rollouts, self._limit, decoder.clock)
        scorer = GroupScorer(built, self._noise_device)
        self._live = _Live(built, model, rolling, _loaded(built, opened.root, rolling), batch, scorer)
        return self._live.loaded

    def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        """See `Engine.step_by`; rule 5 holds."""
        rolling = self._rolling()
        rolling.apply(payload, root, keep=keep)
        return self._step_live(rolling, rolling.last_changes())

    def step_to(self, root: bytes) -> Loaded:
        """See `Engine.step_to`; rule 5 holds for each step."""
        rolling = self._rolling()
        back = root in rolling.behind()
        if not back and root not in (rolling.root, *rolling.ahead()):
            raise WrongBase(f"no kept step leads to {root.hex()[:16]}: load that version, or step by its payload")
        while rolling.root != root:
            if back:
                rolling.back()
            else:
                rolling.redo()
            self._step_live(rolling, rolling.last_changes(back=back))
        return self._loaded().loaded

    def begin(self, ticket: int, job: Job) -> None:
        """See `Engine.begin`."""
        live = self._loaded()
        check_job(job, live.model.config.vocab_size)
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
        """See `Engine.score`."""
        (outcome,) = self.score_groups([GroupToScore(job, samples)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def pass_tokens(self) -> int:
        """See `ScoresTogether.pass_tokens`."""
        return self._loaded().scorer.pass_tokens

    def score_groups(self, groups: Sequence[GroupToScore]) -> list[list[SampleScore] | Exception]:
        """See `ScoresTogether.score_groups`."""
        return self._loaded().scorer.score(groups)

    def _loaded(self) -> _Live:
        if self._live is None:
            raise EngineError("no weights are loaded: call load first")
        return self._live

    def _rolling(self) -> Rolling:
        rolling = self._loaded().rolling
        if rolling is None:
            raise EngineError("the loaded weights are a snapshot file, which cannot be stepped: load a folder")
        return rolling

    def _step_live(self, rolling: Rolling, changes: Iterable[Change]) -> Loaded:
        live, self._live = self._loaded(), None
        with _translated():
            patch(live.model, changes, rolling.snapshot.aliases)
            packed_linear.forget(live.model)
        self._live = live._replace(loaded=_loaded(live.model, rolling.root, rolling))
        return self._live.loaded

    def _text(self, eos: int) -> Tokenizer:
        if eos not in self._texts:
            self._texts[eos] = load_text(self._loaded().folder / "tokenizer.json", eos)
        return self._texts[eos]

    def _rollouts(self, job: Job) -> list[RolloutState]:
        return [RolloutState(job, seed, self._episode(job)) for seed in job.seeds]

    def _episode(self, job: Job) -> Any:
        return registry.get(job.task, job.task_version).episode(_split(job), job.index, self._text(job.eos))


def create(device: str, dtype: Dtype) -> TransformersEngine:
    """Make the engine for engines.registry, on as many threads as the environment says."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return TransformersEngine(device, dtype)


def _build(folder: Path, dtype: torch.dtype) -> Any:
    if not (folder / "config.json").is_file():
        raise EngineError(f"{folder} has no config.json: give the folder of a model")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        auto: Any = AutoModelForCausalLM  # its methods carry no types
        model = auto.from_config(config, dtype=dtype, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        raise EngineError(f"{folder}: the installed transformers cannot build this model: {error}") from error
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def _check_head(model: Any) -> None:
    """Refuse models that change their logits after the output layer: scoring applies that layer itself."""
    ids = torch.arange(min(4, model.config.vocab_size), device=model.device)[None]
    by_hand = model.get_output_embeddings()(model.base_model(ids).last_hidden_state)
    if not torch.allclose(by_hand, model(ids).logits, rtol=1e-4, atol=1e-4, equal_nan=True):
        raise EngineError(
            f"{type(model).__name__} changes its logits after the output layer, which is unsupported: use another model"
        )


def _loaded(model: Any, root: bytes, rolling: Rolling | None) -> Loaded:
    parameters = list(model.parameters())
    return Loaded(
        root=root,
        parameters=sum(parameter.numel() for parameter in parameters),
        nbytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        behind=rolling.behind() if rolling else [],
        ahead=rolling.ahead() if rolling else [],
    )


def _split(job: Job) -> Literal["train", "heldout"]:
    if job.split == "train":
        return "train"
    if job.split == "heldout":
        return "heldout"
    raise EngineError(f"no such split: {job.split!r}; use train or heldout")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, OutOfMemory) as error:
        raise EngineError(f"out of memory: ask for smaller groups or shorter rollouts ({error})") from error
