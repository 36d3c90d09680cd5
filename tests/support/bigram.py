"""A bigram policy, the smallest there is: a table gives the next token from the last one. An `Engine` in numpy.

Its weights are a real snapshot: one bf16 tensor "table" of V x V logits. So diffs, roots and edges are real, and a
whole network of nodes runs in one process without torch. Sampling is the reference of
engines.sampling.sampling_reference.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from echo2.engines.batch.continuous_batch import Chosen, ContinuousBatch, FirstToken, NextToken
from echo2.engines.batch.rollout_state import RolloutState
from echo2.engines.batch.row_limit import Memory, RowLimit
from echo2.engines.engine import (
    GAP_MOST,
    EngineError,
    EngineRows,
    Finished,
    Job,
    Loaded,
    Sample,
    SampledTurn,
    SampleScore,
)
from echo2.engines.sampling import sampling_reference
from echo2.engines.temperature import PLAIN_TEMPERATURE, factor_of
from echo2.tasks import registry
from echo2.tasks.task import Score, sampled_mask
from echo2.tasks.tokenizer import load as load_text
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import open_weights
from echo2.weights.snapshot import Snapshot, writing_snapshot

VOCABULARY = 16


def write_table(path: Path, table: NDArray[np.float32]) -> Snapshot:
    """Write a snapshot of `table`, V x V, truncated to bf16."""
    bits = (np.ascontiguousarray(table, np.float32).view(np.uint32) >> 16).astype("<u2")
    with writing_snapshot(path, [TensorEntry(name="table", dtype="BF16", shape=table.shape)], {}) as writer:
        writer.write(bits.ravel())
        writer.finish()
    return Snapshot(path)


def read_table(snapshot: Snapshot) -> NDArray[np.float32]:
    """Return the table of a snapshot, V x V."""
    bits = np.asarray(snapshot.bits("table"), np.uint32) << 16
    size = int(np.sqrt(bits.size))
    return bits.view(np.float32).reshape(size, size)


def random_table(seed: int, size: int = VOCABULARY) -> NDArray[np.float32]:
    """Return random logits under which no token is too unlikely to be sampled."""
    return np.random.default_rng(seed).normal(size=(size, size)).astype(np.float32)


def nudged(table: NDArray[np.float32], seed: int, share: float = 0.05) -> NDArray[np.float32]:
    """Return the table after a learner's step: some entries move a little."""
    random = np.random.default_rng(seed)
    return np.where(random.random(table.shape) < share, table * np.float32(1.25), table).astype(np.float32)


@lru_cache(1 << 14)
def noise(seed: bytes, position: int, size: int) -> NDArray[np.float32]:
    """Return the noise of each token. One process generates a group and scores it, so each is wanted twice or more."""
    key = sampling_reference.key(seed, position)
    return np.array([sampling_reference.gumbel(sampling_reference.bits(key, token)) for token in range(size)], "f4")


class _OneTurn:
    """An episode of one sampled turn, for model folders without a tokenizer."""

    prompt: Sequence[int] = ()

    def reply(self, sampled: Sequence[int]) -> None:
        return None

    def score(self) -> Score:
        return Score(0.0, False)


class BigramEngine:
    """An `engines.engine.Engine`. With a tokenizer.json in the model's folder, it plays tasks of the registry."""

    def __init__(self) -> None:
        self._table: NDArray[np.float32] | None = None
        self._model = self._weights = Path()
        self._rolling: Rolling | None = None
        self.snapshot: Snapshot | None = None
        self._batch = ContinuousBatch(self, self._rollouts, RowLimit(), lambda: 0.0)

    def load(self, model: Path, weights: Path) -> Loaded:
        self._model = model
        self._weights = weights
        self._rolling = open_weights(weights) if weights.is_dir() else None
        opened = Snapshot(self._rolling.path if self._rolling else weights)
        if self._rolling and self._rolling.root != opened.root:
            raise BadSnapshot("damaged")
        return self._hold(opened)

    def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        self._rolling = open_weights(self._weights)
        self._rolling.apply(payload, root, keep=keep)
        return self._hold(self._rolling.snapshot)

    def step_to(self, root: bytes) -> Loaded:
        self._rolling = open_weights(self._weights)
        while self._rolling.root != root:
            if root in self._rolling.behind():
                self._rolling.back()
            else:
                self._rolling.redo()
        return self._hold(self._rolling.snapshot)

    def twin(self) -> "BigramEngine":
        """Return an engine of its own with the same weights loaded."""
        other = BigramEngine()
        other._table, other._model, other.snapshot = self._table, self._model, self.snapshot
        return other

    def begin(self, ticket: int, job: Job) -> None:
        self._batch.begin(ticket, job)

    def cancel(self, ticket: int) -> None:
        self._batch.cancel(ticket)

    def step(self) -> list[Finished]:
        return self._batch.step()

    def turns(self) -> list[SampledTurn]:
        return self._batch.turns()

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        self._batch.answer(served, sample, turn_number, given)

    @property
    def idle(self) -> bool:
        return self._batch.idle

    @property
    def rows(self) -> EngineRows:
        return self._batch.rows

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        return [self._score(job, seed, sample) for seed, sample in zip(job.seeds, samples, strict=True)]

    def _hold(self, snapshot: Snapshot) -> Loaded:
        self._table, self.snapshot = read_table(snapshot), snapshot
        behind, ahead = (self._rolling.behind(), self._rolling.ahead()) if self._rolling else ([], [])
        return Loaded(
            root=snapshot.root, parameters=self._table.size, nbytes=snapshot.nbytes, behind=behind, ahead=ahead
        )

    def _logits(self, last: int) -> NDArray[np.float32]:
        if self._table is None:
            raise EngineError("no weights are loaded")
        return self._table[last]

    # --- engines.batch.continuous_batch.Backend; a prompt is its last token

    overlap = False

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[prompt[-1]] for prompt in prompts]

    def extend(self, prompt: list[int], tokens: Sequence[int]) -> None:
        prompt[0] = tokens[-1]

    def release(self, prompt: list[int]) -> None:
        pass

    def decode(self, rows: Sequence[NextToken], first: Sequence[FirstToken[list[int]]]) -> Callable[[], Chosen]:
        chosen = [self._choice(row.token or 0, row) for row in rows]
        chosen += [self._choice(one.prompt[0], one) for one in first]
        return lambda: Chosen([token for token, _ in chosen], [logprob for _, logprob in chosen])

    def resume(self, prompt: list[int]) -> None:
        pass

    def park(self, place: int, length: int) -> list[int]:
        return [0]

    def vacate(self, place: int, last: int) -> None:
        pass

    def clean(self, place: int) -> None:
        pass

    def reset(self) -> None:
        pass

    def memory(self) -> Memory:
        return Memory(1 << 40, 1, 1)

    def _choice(self, last: int, row: NextToken | FirstToken[list[int]]) -> tuple[int, float]:
        logits = tempered(self._logits(last), row.temperature)
        token = int(np.argmax(logits if row.greedy else logits + noise(row.seed, row.number, len(logits))))
        return token, float(log_softmax(logits)[token])

    def _rollouts(self, job: Job) -> list[RolloutState]:
        return [
            RolloutState(job, seed, None if job.served else self._episode(job), number=number)
            for number, seed in enumerate(job.seeds)
        ]

    def _score(self, job: Job, seed: bytes, sample: Sample) -> SampleScore:
        logprobs, margins, gaps = [], [], []
        before = [job.prompt[-1], *sample.tokens]
        for position, sampled in enumerate(sampled_mask(sample.turns)):
            if not sampled:
                continue
            logits, token = tempered(self._logits(before[position]), job.temperature), sample.tokens[position]
            noisy = (logits + noise(seed, position, len(logits))).tolist()
            logprobs.append(float(log_softmax(logits)[token]))
            second, best = sorted(noisy)[-2:]
            margins.append(best - noisy[token])
            gaps.append(min(GAP_MOST, best - second))
        return SampleScore(logprobs=logprobs, margins=margins, gaps=gaps)

    def _episode(self, job: Job) -> _OneTurn:
        tokenizer = self._model / "tokenizer.json"
        if job.single_turn or not tokenizer.exists():
            return _OneTurn()
        task = registry.get(job.task, job.task_version)
        text = load_text(tokenizer, *job.ends)
        return task.episode("train" if job.split == "train" else "heldout", job.index, text)  # type: ignore[return-value]


def tempered(logits: NDArray[np.float32], temperature: int) -> NDArray[np.float32]:
    """Return the logits at a temperature, in thousandths."""
    return logits if temperature == PLAIN_TEMPERATURE else logits * np.float32(factor_of(temperature))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the log-softmax of one row, in float32."""
    shifted = logits - logits.max()
    return np.minimum(shifted - np.log(np.exp(shifted).sum(dtype=np.float32)), np.float32(0)).astype(np.float32)
