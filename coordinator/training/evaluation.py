"""Evaluate a version: exact match on held-out prompts, sampled at T = 1 with fixed seeds, and greedy.

Rules
1. The held-out prompts and the seeds depend on the task alone, so that every version, and every run of the same task,
   gets the same prompts with the same noise.
2. No answer to a held-out prompt is learned from: tasks keep the splits apart, and volunteers generate held-out groups
   apart from those of training (heldout_evaluation.py).
3. An answer at which the task's own code fails counts as not solved.
4. The turns of a served task are answered by episodes of their own, as those of nodes are.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from coordinator.environments.played_group import play
from coordinator.environments.task_host import TaskFacts, TaskHost
from coordinator.metrics.views import Evaluation, TaskEvaluation
from coordinator.rollouts.prompts import check_room
from coordinator.rollouts.scorer import Scorer
from engines.engine import Job, Sample
from protocol.task_kinds import ANSWERED, SINGLE
from tasks.task import TaskFault, Transcript
from tasks.turn_ends import Ends

log = structlog.get_logger("coordinator")

SLICE = 128
"""Answers generated together: verdicts under another version wait at most for these."""


@dataclass(frozen=True)
class EvaluationSet:
    """The held-out prompts of an evaluation. `eos`, `other_ends`: the ids that end a turn. `limit`: most sampled tokens
    per answer. `prompts`: number of prompts, capped at the size of the held-out split. `room`: most tokens of a prompt
    and of what an environment gives; None: the model states no context."""

    host: TaskHost
    eos: int
    limit: int
    prompts: int
    room: int | None = None
    other_ends: Ends = ()

    async def jobs(self) -> list[Job]:
        """Return one job per prompt; prompts at which the task fails are left out."""
        return await self.groups(self.prompts)

    async def groups(self, prompts: int, samples: int = 1) -> list[Job]:
        """Return one job per prompt, of `samples` answers, of so many prompts at most."""
        jobs, task = [], self.host.facts
        for index in range(min(prompts, task.heldout)):
            try:
                jobs.append(await self.job(index, samples))
            except TaskFault as fault:
                log.warning("held-out prompt left out", task=task.name, index=index, reason=str(fault))
        return jobs

    async def job(self, index: int, samples: int = 1) -> Job:
        """Return the job of a prompt. Raises `TaskFault`."""
        task, prompt = self.host.facts, await self.host.prompt("heldout", index)
        check_room(task.name, index, prompt, self.room)
        return Job(
            prompt=prompt,
            seeds=[_seed(task, index, sample) for sample in range(samples)],
            limit=self.limit,
            eos=self.eos,
            other_ends=self.other_ends,
            task=task.name,
            task_version=task.version,
            split="heldout",
            index=index,
            single_turn=task.kind == SINGLE,
        )

    async def answered(self, scorer: Scorer, jobs: Sequence[Job]) -> list[list[bool]]:
        """Generate the answers to prompts together; return, by job, whether each solves its prompt."""
        if self.host.facts.kind in ANSWERED:
            return await asyncio.gather(*(self._played(scorer, job) for job in jobs))
        groups = await scorer.generate_all(jobs)
        return [
            await asyncio.gather(*(self._solved(job, sample) for sample in group))
            for job, group in zip(jobs, groups, strict=True)
        ]

    async def _played(self, scorer: Scorer, job: Job) -> list[bool]:
        played = await play(scorer, self.host, job, "heldout", self.room)
        for reason in played.faults:
            log.warning("held-out episode failed", task=job.task, index=job.index, reason=reason)
        return [score is not None and score.success for score in played.scores]

    async def _solved(self, job: Job, sample: Sample) -> bool:
        transcript = Transcript(sample.tokens, sample.turns)
        try:
            return (await self.host.score("heldout", job.index, transcript, job.limit)).success
        except TaskFault as fault:
            log.warning("held-out answer not scored", task=job.task, index=job.index, reason=str(fault))
            return False


def _seed(task: TaskFacts, index: int, sample: int) -> bytes:
    """Return the seed of a sample of a held-out prompt (rule 1)."""
    named = f"heldout/{task.name}/{task.version}/{index}" + (f"/{sample}" if sample else "")
    return hashlib.blake2b(named.encode(), digest_size=16).digest()


async def evaluate(
    evaluation_sets: Sequence[EvaluationSet],
    scorer: Scorer,
    *,
    hold: Callable[[], Awaitable[None]],
    version: int,
    clock: Callable[[], float],
    between: Callable[[], Awaitable[None]],
) -> Evaluation:
    """Generate the answers with `scorer` under `version`, and return the shares solved, of each task and of all prompts
    together. `evaluation_sets`: of the tasks. `hold`: loads the version into
    the scorer. `between`: called before every `SLICE` answers, for work that goes first; it may load another version.
    Raises `ChildDied`, `ChildError`."""
    tasks = []
    for one in evaluation_sets:
        jobs, shares = await one.jobs(), list[float]()
        for greedy in (False, True):
            solved: list[bool] = []
            for start in range(0, len(jobs), SLICE):
                await between()
                await hold()
                some = [replace(job, greedy=greedy) for job in jobs[start : start + SLICE]]
                solved += itertools.chain.from_iterable(await one.answered(scorer, some))
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
