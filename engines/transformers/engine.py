"""The default engine: PyTorch and transformers on any CPU or GPU, with a decode loop of its own.

1. Log-probabilities are exact: log softmax, in float32, of the same logits from which the token was chosen.
2. A prompt is computed once, and its keys and values are repeated for the group. Rollouts of a batch have one length
   (engines.rollout_state, rule 1); a finished one drops out.
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
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from engines import sampling
from engines.engine import Dtype, EngineError, Job, Loaded, Sample, SampleScore
from engines.rollout_state import RolloutState
from engines.transformers import packed_linear
from engines.transformers.scoring import GroupScorer, prefill
from tasks import registry
from tasks.task import Tokenizer
from tasks.tokenizer import load as load_text
from weights.diff import Change
from weights.errors import BadSnapshot, WrongBase
from weights.journaled import Rolling
from weights.snapshot import Snapshot
from weights.torch_io import load_into, patch

BATCH_LOGITS = 2**23
"""Most logits of one decode step, all rows together; a group always stays together."""


class _Live(NamedTuple):
    model: Any  # transformers.PreTrainedModel, whose methods carry no types
    folder: Path
    rolling: Rolling | None
    loaded: Loaded


class TransformersEngine:
    """`engines.engine.Engine`. `device`: 'cpu', 'cuda', 'cuda:1', 'mps'."""

    def __init__(self, device: str = "cpu", dtype: Dtype = "float32") -> None:
        self._device = torch.device(device)
        self._dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        # 64-bit integer operations are incomplete on MPS.
        self._noise_device = torch.device("cpu") if self._device.type == "mps" else self._device
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
        self._texts = {}
        self._live = _Live(built, model, rolling, _loaded(built, opened.root, rolling))
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

    def generate(self, job: Job) -> list[Sample]:
        return self.generate_many([job])[0]

    def generate_many(self, jobs: list[Job], *, greedy: bool = False) -> list[list[Sample]]:
        """`greedy`: the most likely token, no noise; the seeds then only say how many samples."""
        model = self._loaded().model
        rows_at_once = max(1, BATCH_LOGITS // model.config.vocab_size)
        results: list[list[Sample]] = [[] for _ in jobs]
        for job in jobs:
            _check_job(job, model.config.vocab_size)
        order = sorted(range(len(jobs)), key=lambda index: len(jobs[index].prompt))
        for _, same_length in groupby(order, key=lambda index: len(jobs[index].prompt)):
            for batch in _batches(list(same_length), [len(job.seeds) for job in jobs], rows_at_once):
                with _translated(), torch.inference_mode():
                    samples = iter(self._decode(model, [jobs[index] for index in batch], greedy))
                for index in batch:
                    results[index] = [next(samples) for _ in jobs[index].seeds]
        return results

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        """See `Engine.score`."""
        model = self._loaded().model
        _check_job(job, model.config.vocab_size)
        with _translated(), torch.inference_mode():
            return GroupScorer(model, self._noise_device).score(job, samples)

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

    def _decode(self, model: Any, jobs: Sequence[Job], greedy: bool) -> list[Sample]:
        rollouts = [RolloutState(job, seed, self._episode(job)) for job in jobs for seed in job.seeds]
        cache, hidden = prefill(model, [job.prompt for job in jobs])
        owner = torch.tensor([index for index, job in enumerate(jobs) for _ in job.seeds], device=self._device)
        cache.batch_select_indices(owner)
        logits = model.get_output_embeddings()(hidden)[owner, 0].float()
        live = rollouts
        while live:
            self._step(logits, live, greedy)
            going = [row for row, rollout in enumerate(live) if not rollout.ended]
            if len(going) < len(live):
                cache.batch_select_indices(torch.tensor(going, dtype=torch.int64, device=self._device))
                live = [live[row] for row in going]
            if live:
                ids = torch.tensor([[rollout.last] for rollout in live], device=self._device)
                logits = model(ids, past_key_values=cache, use_cache=True).logits[:, -1].float()
        return [rollout.sample() for rollout in rollouts]

    def _step(self, logits: Tensor, live: Sequence[RolloutState], greedy: bool) -> None:
        logits = logits.to(self._noise_device)
        if greedy:
            tokens, logprobs = sampling.greedy(logits)
        else:
            pairs = [(rollout.seed, rollout.position) for rollout in live]
            tokens, logprobs = sampling.choose(logits, sampling.keys(pairs, self._noise_device))
        if not bool(logprobs.isfinite().all()):
            raise EngineError("the weights give log-probabilities that are not finite")
        for rollout, token, logprob in zip(live, tokens.tolist(), logprobs.tolist(), strict=True):
            rollout.step(token, logprob)

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


def _check_job(job: Job, vocabulary: int) -> None:
    """Check a job's prompt and limit: a token id out of range would wedge a GPU until its process ends."""
    if not job.prompt or job.limit < 1:
        raise EngineError("a job needs a prompt, and a limit of one token at least")
    if not all(0 <= token < vocabulary for token in job.prompt):
        raise EngineError(f"the prompt has a token outside the model's vocabulary of {vocabulary}")


def _batches(indices: Sequence[int], rows: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the indices in order, in batches of at most `most` rows, or of one index. Indices without rows are left
    out."""
    batch: list[int] = []
    for index in indices:
        if batch and sum(rows[other] for other in batch) + rows[index] > most:
            yield batch
            batch = []
        if rows[index]:
            batch.append(index)
    if batch:
        yield batch


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineError(f"out of memory: ask for smaller groups or shorter rollouts ({error})") from error
