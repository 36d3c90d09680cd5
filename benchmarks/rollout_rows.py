"""Measure what generating many groups together gains: the second part of `python -m benchmarks.rollout`.

1. The engine's rate by number of rows, groups of 8 of full length.
2. Mixed lengths: prompts of `PROMPT` tokens, completions of 4 to 96, 50 in the mean; each group has a length of its
   own. `transformers.generate` takes batches of the same lengths, and each row stops at its own; it pays for the
   longest. Its best batch counts, of `BATCHES`. Only tokens up to a row's own length count.
3. A version change: no new group begins, and the running rows are finished in ever smaller steps. The tokens lost are
   those that full steps would have made in that time; they are given as a share of 10 group times.
"""

import os
import random
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from msgspec.structs import replace
from transformers import StoppingCriteria, StoppingCriteriaList

from benchmarks.plays.direct import generate_all
from echo2.engines.batch.row_limit import RowLimit
from echo2.engines.engine import Job
from echo2.engines.transformers.engine import TransformersEngine

PROMPT: Final = 64
SHORTEST, LONGEST = 4, 96
GROUP: Final = 8
BATCHES: Final = (16, 32, 64, 128)
PER_CHANGE: Final = 10
"""Group times from one version to the next."""


class FixedRows(RowLimit):
    """A row limit that never changes."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def on_step_duration(self, rows: int, seconds: float) -> None:
        pass


class MixedRun(NamedTuple):
    """Groups of mixed lengths, generated to the end. `tokens`, `cpu`: in all. `steady`: tokens per CPU second while
    groups waited. `lost_tokens`: those that one change of version costs; `lost`: their share of the tokens of
    `PER_CHANGE` group times."""

    tokens: int
    cpu: float
    steady: float
    lost_tokens: float
    lost: float

    @property
    def rate(self) -> float:
        return self.tokens / self.cpu


def groups_of(job: Job, groups: int, limits: Sequence[int] | None = None) -> list[Job]:
    """Return groups of 8 like `job`, with seeds of their own. `limits`: of each group."""
    lengths = limits or [job.limit] * groups
    return [
        replace(job, seeds=[os.urandom(16) for _ in range(GROUP)], limit=lengths[index % len(lengths)])
        for index in range(groups)
    ]


def mixed_lengths(count: int) -> list[int]:
    """Return lengths from 4 to 96, evenly spread, in an order that is the same in every run."""
    step = (LONGEST - SHORTEST) / max(1, count - 1)
    lengths = [round(SHORTEST + step * index) for index in range(count)]
    random.Random(1).shuffle(lengths)
    return lengths


def mixed_job(job: Job) -> Job:
    """Return `job` with a prompt of `PROMPT` tokens."""
    return replace(job, prompt=[3 + index % 1000 for index in range(PROMPT)])


def full_length(engine: TransformersEngine, job: Job, rows: int) -> float:
    """Generate `rows` rows of full length; return their number of tokens."""
    groups = generate_all(engine, groups_of(job, rows // GROUP))
    return float(sum(len(sample.logprobs) for group in groups for sample in group))


def mixed_run(engine: TransformersEngine, jobs: Sequence[Job], rows: int) -> MixedRun:
    """Generate groups of mixed lengths to the end. As long as groups are left, some always wait in the engine."""
    ticket, under_way, began, times = 0, 0, time.thread_time(), list[float]()
    starts: dict[int, float] = {}
    tokens, steady = 0, (0, 0.0)
    while ticket < len(jobs) or under_way:
        while ticket < len(jobs) and engine.rows.waiting < GROUP:
            engine.begin(ticket, jobs[ticket])
            starts[ticket] = time.thread_time()
            ticket, under_way = ticket + 1, under_way + 1
        if engine.rows.waiting:
            steady = tokens, time.thread_time() - began
        tokens += min(rows, engine.rows.running + engine.rows.waiting)
        for ended in engine.step():
            times.append(time.thread_time() - starts[ended.ticket])
            under_way -= 1
    cpu = time.thread_time() - began
    rate = steady[0] / steady[1]
    lost = rate * cpu - tokens
    return MixedRun(tokens, cpu, rate, lost, lost / (rate * PER_CHANGE * sum(times) / len(times)))


class _OwnLength(StoppingCriteria):
    """Stops each row at its own length."""

    def __init__(self, prompt: int, lengths: Sequence[int]) -> None:
        self._ends = torch.tensor(lengths) + prompt

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return input_ids.shape[1] >= self._ends


@torch.inference_mode()
def library_mixed(model: Any, prompt: Sequence[int], lengths: Sequence[int]) -> float:
    """Generate one batch by `transformers.generate`, with log-probabilities; return the tokens that count."""
    ids = torch.tensor([list(prompt)]).repeat(len(lengths), 1)
    generated = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
        max_new_tokens=max(lengths), return_dict_in_generate=True, output_scores=True, pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([_OwnLength(len(prompt), lengths)]),
    )  # fmt: skip
    tokens = generated.sequences[:, len(prompt) :]
    for place, scores in enumerate(generated.scores):
        torch.log_softmax(scores, -1).gather(1, tokens[:, place : place + 1])
    return float(sum(lengths))
