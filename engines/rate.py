"""Measure the rate at which an engine generates rollouts of a run, with as many rows as it takes.

Rules
1. The jobs are those of the run's own tasks, at its own group size and limit, so that lengths and memory are real. In
   any stretch of jobs each task has its share by weight, up to one job. For a task whose code is at the operator they
   have prompts of `PROMPT_TOKENS` tokens drawn from a seed. Jobs are added as long as fewer rows wait than the engine
   may run.
2. The engine first finds its number of rows (engines.batch.row_limit). The measurement begins once that number has
   stayed the same for `STEADY_SECONDS` seconds, or `MOST_WARM_UP_SECONDS` seconds after the first step.
3. Tokens count per step: one for each row that was running before it. Prompts cost time and count nothing.
"""

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from echo2.engines.context import context_of
from echo2.engines.engine import Engine, Job
from echo2.tasks import registry
from echo2.tasks.task import Tokenizer
from echo2.tasks.tokenizer import load

STEADY_SECONDS: Final = 2.5
MOST_WARM_UP_SECONDS: Final = 12.0
PROMPT_TOKENS: Final = 64
"""Tokens of a prompt that is drawn (rule 1), unless the model's context leaves room for fewer."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Work of an engine. `seconds`: seconds by the clock. `cpu_seconds`: CPU seconds of its process. `rows`: the most
    at once."""

    tokens: int
    seconds: float
    cpu_seconds: float
    rows: int

    @property
    def per_second(self) -> float:
        return self.tokens / max(1e-9, self.seconds)

    @property
    def per_cpu_second(self) -> float:
        return self.tokens / max(1e-9, self.cpu_seconds)

    def group_seconds(self, group: int, limit: int) -> float:
        """Return the seconds that a group of `group` rollouts of `limit` tokens takes: as many at once as rows were."""
        return -(-group // self.rows) * limit * self.rows / max(1e-9, self.per_second)


class TaskShare(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a run. `weight`: weight at least 1. `single_turn`: the task's code is at the operator."""

    name: str
    version: int
    weight: int = 1
    single_turn: bool = False


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a run: its tasks, most sampled tokens per rollout, rollouts per group, end tokens."""

    tasks: tuple[TaskShare, ...]
    limit: int
    group: int
    eos: int
    other_ends: tuple[int, ...] = ()

    def jobs(self, model: Path) -> Iterator[Job]:
        """Yield the tasks' jobs without an end (rule 1). `model`: the folder with tokenizer.json."""
        text, context = load(model / "tokenizer.json", self.eos, *self.other_ends), context_of(model)
        drawn = PROMPT_TOKENS if context is None else max(1, min(PROMPT_TOKENS, context - self.limit))
        prompts = {one.name: _random_prompts(one, text.size, drawn) if one.single_turn else _task_prompts(one, text)
                   for one in self.tasks}  # fmt: skip
        indices = {one.name: itertools.count() for one in self.tasks}
        for number, task in enumerate(by_weight(self.tasks)):
            yield Job(
                prompt=next(prompts[task.name]),
                seeds=[hashlib.sha256(b"rate %d %d" % (number, row)).digest()[:16] for row in range(self.group)],
                limit=self.limit, eos=self.eos, single_turn=task.single_turn, task=task.name,
                task_version=task.version, split="train", index=next(indices[task.name]), other_ends=self.other_ends,
            )  # fmt: skip


def by_weight(tasks: Sequence[TaskShare]) -> Iterator[TaskShare]:
    """Yield tasks without an end, each in its share by weight: next is the one that is furthest behind its share."""
    total, given = sum(one.weight for one in tasks), dict.fromkeys(range(len(tasks)), 0)
    for number in itertools.count(1):
        late = max(given, key=lambda one: tasks[one].weight * number - given[one] * total)
        given[late] += 1
        yield tasks[late]


def _task_prompts(task: TaskShare, text: Tokenizer) -> Iterator[list[int]]:
    known = registry.get(task.name, task.version)
    for index in itertools.count():
        yield list(known.episode("train", index, text).prompt)


def _random_prompts(task: TaskShare, size: int, length: int) -> Iterator[list[int]]:
    chance = random.Random(task.name)
    while True:
        yield [chance.randrange(size) for _ in range(length)]


class _Fed:
    """An engine that always has rows waiting. `tokens`: those of its steps so far."""

    def __init__(self, engine: Engine, jobs: Iterator[Job]) -> None:
        self._engine, self._jobs = engine, jobs
        self._tickets = itertools.count(1)
        self._begun: set[int] = set()
        self.tokens = 0

    def step(self) -> None:
        """Take the rows one token further. Raises the error of a group that fails."""
        while self._engine.rows.waiting < max(1, self._engine.rows.limit):
            ticket = next(self._tickets)
            self._engine.begin(ticket, next(self._jobs))
            self._begun.add(ticket)
        self.tokens += self._engine.rows.running
        for ended in self._engine.step():
            self._begun.discard(ended.ticket)
            if isinstance(ended.outcome, Exception):
                raise ended.outcome

    def end(self) -> None:
        """Cancel what is under way."""
        for ticket in self._begun:
            self._engine.cancel(ticket)


def measure(
    engine: Engine, jobs: Iterator[Job], seconds: float, clock: Callable[[], float], cpu: Callable[[], float]
) -> Rate:
    """Measure for `seconds` with a loaded engine on which nothing is under way. `clock`, `cpu`: seconds by the clock,
    and of this process. Raises EngineError where a group cannot be generated."""
    fed = _Fed(engine, jobs)
    try:
        fed.step()
        first = since = clock()
        limit = engine.rows.limit
        while clock() - first < MOST_WARM_UP_SECONDS and clock() - since < STEADY_SECONDS:
            fed.step()
            if engine.rows.limit != limit:
                limit, since = engine.rows.limit, clock()
        began, spent, before, most = clock(), cpu(), fed.tokens, engine.rows.running
        while clock() - began < seconds:
            fed.step()
            most = max(most, engine.rows.running)
        return Rate(tokens=fed.tokens - before, seconds=clock() - began, cpu_seconds=cpu() - spent, rows=most)
    finally:
        fed.end()
