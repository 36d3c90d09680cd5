"""Evaluate a version: exact match on held-out prompts, sampled at the run's temperature with fixed seeds, and greedy.

Rules
1. The held-out prompts and the seeds depend on the task alone, so that every version, and every run of the same task,
   gets the same prompts with the same noise.
2. No answer to a held-out prompt is learned from: tasks keep the splits apart, and leases are of the
   split `train` alone.
3. An answer at which the task's own code fails counts as not solved.
4. Answers are generated in slices (slice_pace.py), the turns of a served task answered by episodes of their own, as
   those of nodes are.
5. Prompts are posed, and single answers scored, while the scorer does other work (`Meanwhile`): an environment that is
   slow, or that cannot be opened, delays evaluations alone.
"""

import asyncio
import functools
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog
from msgspec.structs import replace

from echo2.coordinator.environments.played_group import PlayedGroup, play
from echo2.coordinator.environments.task_host import TaskFacts, TaskHost
from echo2.coordinator.metrics.views import Evaluation, TaskEvaluation
from echo2.coordinator.prompts.prompts import check_room
from echo2.coordinator.training.slice_pace import SlicePace, SliceTimes
from echo2.coordinator.verification.scorer import Scorer
from echo2.engines.engine import Job, Sample
from echo2.protocol.authority import PLAIN_TEMPERATURE
from echo2.protocol.task_kinds import ANSWERED_KINDS, SINGLE_KIND
from echo2.tasks.task import TaskFault, Transcript
from echo2.tasks.turn_ends import Ends

log = structlog.get_logger("coordinator")

T = TypeVar("T")


class Meanwhile(Protocol):
    """Await work of an environment while the scorer does other work, which may load another version (rule 5)."""

    async def __call__(self, work: Awaitable[T]) -> T: ...


class VersionGone(Exception):
    """The version that is evaluated cannot be loaded any more."""


@dataclass(frozen=True)
class EvaluationSet:
    """The held-out prompts of an evaluation. `eos`, `other_ends`: the ids that end a turn. `limit`: most sampled tokens
    per answer. `prompts`: number of prompts, capped at the size of the held-out split. `room`: most tokens of a prompt
    and of what an environment gives; None: the model states no context. `pace`: how many answers come together.
    `temperature`: temperature of the sampled answers, in thousandths."""

    host: TaskHost
    eos: int
    limit: int
    prompts: int
    room: int | None = None
    other_ends: Ends = ()
    pace: SlicePace = field(default_factory=SlicePace)
    temperature: int = PLAIN_TEMPERATURE

    async def jobs(self) -> list[Job]:
        """Return one job per prompt; prompts at which the task fails are left out."""
        jobs, task = [], self.host.facts
        for index in range(min(self.prompts, task.heldout)):
            try:
                jobs.append(await self._job(index))
            except TaskFault as fault:
                log.warning("held-out prompt left out", task=task.name, index=index, reason=str(fault))
        return jobs

    async def _job(self, index: int) -> Job:
        """Return the job of a prompt. Raises `TaskFault`."""
        task, prompt = self.host.facts, await self.host.prompt("heldout", index)
        check_room(task.name, index, prompt, self.room)
        return Job(
            prompt=prompt,
            seeds=[_seed(task, index)],
            limit=self.limit,
            eos=self.eos,
            other_ends=self.other_ends,
            temperature=self.temperature,
            task=task.name,
            task_version=task.version,
            split="heldout",
            index=index,
            single_turn=task.kind == SINGLE_KIND,
        )

    async def answer_prompts(
        self, scorer: Scorer, jobs: Sequence[Job], meanwhile: Meanwhile, generated: Callable[[], None]
    ) -> list[list[bool]]:
        """Generate the answers to prompts together; return, by job, whether each solves its prompt. Afterwards the
        scorer may have another version loaded (rule 5). `generated`: called once the scorer is free."""
        if self.host.facts.kind in ANSWERED_KINDS:
            solved = await self._played_together(scorer, jobs)
            generated()
            return solved
        groups = await scorer.generate_all(jobs)
        generated()
        return await meanwhile(self._all_solved(jobs, groups))

    async def _all_solved(self, jobs: Sequence[Job], groups: Sequence[Sequence[Sample]]) -> list[list[bool]]:
        return [
            await asyncio.gather(*(self._is_solved(job, sample) for sample in group))
            for job, group in zip(jobs, groups, strict=True)
        ]

    async def _played_together(self, scorer: Scorer, jobs: Sequence[Job]) -> list[list[bool]]:
        parts = (play(scorer, self.host, job, "heldout", self.room) for job in jobs)
        groups = list[PlayedGroup]()
        for one in await asyncio.gather(*parts, return_exceptions=True):  # none goes on behind an error
            if isinstance(one, BaseException):
                raise one
            groups.append(one)
        for job, group in zip(jobs, groups, strict=True):
            for reason in group.faults:
                log.warning("held-out episode failed", task=job.task, index=job.index, reason=reason)
        answers, seconds = sum(len(group.scores) for group in groups), sum(group.seconds for group in groups)
        self.pace.note_environment(answers, seconds)
        return [[score is not None and score.success for score in group.scores] for group in groups]

    async def _is_solved(self, job: Job, sample: Sample) -> bool:
        transcript = Transcript(sample.tokens, sample.turns)
        try:
            return (await self.host.score("heldout", job.index, transcript, job.limit)).success
        except TaskFault as fault:
            log.warning("held-out answer not scored", task=job.task, index=job.index, reason=str(fault))
            return False


def _seed(task: TaskFacts, index: int) -> bytes:
    """Return the seed of the answer to a held-out prompt (rule 1)."""
    named = f"heldout/{task.name}/{task.version}/{index}"
    return hashlib.blake2b(named.encode(), digest_size=16).digest()


async def evaluate(
    evaluation_sets: Sequence[EvaluationSet],
    scorer: Scorer,
    *,
    hold: Callable[[], Awaitable[bool]],
    version: int,
    clock: Callable[[], float],
    between: Callable[[], Awaitable[None]],
    meanwhile: Meanwhile,
    verdict_seconds: Callable[[], float | None] = lambda: None,
) -> Evaluation:
    """Generate the answers with `scorer` under `version`, and return the shares solved, of each task and of all prompts
    together. `evaluation_sets`: evaluation sets of the tasks. `hold`: loads the version into
    the scorer; it returns False if that is gone. `between`: called before every slice of answers, for work that goes
    first; it may load another version. `meanwhile`: see rule 5. `verdict_seconds`: returns the seconds that one group's
    verdict takes; None: not measured yet. Raises `VersionGone`, `EnvironmentAway`, `ChildDied`, `ChildError`."""

    def note_slice(pace: SlicePace, answers: int, began: float, moved: float) -> None:
        pace.note(answers, SliceTimes(moved - began, clock() - moved, verdict_seconds()))

    tasks = []
    for one in evaluation_sets:
        one.pace.begin()
        jobs, shares = await meanwhile(one.jobs()), list[float]()
        for greedy in (False, True):
            solved: list[bool] = []
            while len(solved) < len(jobs):
                await between()
                began = clock()
                if not await hold():
                    raise VersionGone
                some = [replace(job, greedy=greedy) for job in jobs[len(solved) : len(solved) + one.pace.size]]
                generated = functools.partial(note_slice, one.pace, len(some), began, clock())
                solved += itertools.chain.from_iterable(await one.answer_prompts(scorer, some, meanwhile, generated))
            shares.append(sum(solved) / max(1, len(solved)))
        name = one.host.facts.name
        tasks.append(TaskEvaluation(task=name, prompts=len(jobs), sampled=shares[0], greedy=shares[1]))
    prompts = sum(task.prompts for task in tasks)
    return Evaluation(
        version=version,
        at=int(clock() * 1000),
        prompts=prompts,
        sampled=sum(task.prompts * task.sampled for task in tasks) / max(1, prompts),
        greedy=sum(task.prompts * task.greedy for task in tasks) / max(1, prompts),
        tasks=tasks,
    )
