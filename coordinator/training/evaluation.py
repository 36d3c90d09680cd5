"""Evaluate a version: exact match on held-out prompts, sampled at T = 1 with fixed seeds, and greedy.

Rules
1. The held-out prompts and the seeds depend on the task alone, so that every version, and every run of the same task,
   gets the same prompts with the same noise.
2. Held-out prompts are never leased: tasks keep the splits apart.
3. An answer at which the task's own code fails counts as not solved.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from coordinator.environments.task_host import TaskFacts, TaskHost
from coordinator.metrics.views import Evaluation
from coordinator.rollouts.scorer import Scorer
from engines.engine import Job, Sample
from protocol.task_kinds import SINGLE
from tasks.task import TaskFault, Transcript

log = structlog.get_logger("coordinator")

SLICE = 128
"""Answers generated together: verdicts under another version wait at most for these."""


@dataclass(frozen=True)
class EvaluationSet:
    """The held-out prompts of an evaluation. `eos`: the id that ends a turn. `limit`: most sampled tokens per answer.
    `prompts`: number of prompts, capped at the size of the held-out split."""

    host: TaskHost
    eos: int
    limit: int
    prompts: int

    async def jobs(self) -> list[Job]:
        """Return one job per prompt; prompts at which the task fails are left out."""
        jobs, task = [], self.host.facts
        for index in range(min(self.prompts, task.heldout)):
            try:
                jobs.append(await self._job(task, index))
            except TaskFault as fault:
                log.warning("held-out prompt left out", task=task.name, index=index, reason=str(fault))
        return jobs

    async def _job(self, task: TaskFacts, index: int) -> Job:
        named = f"heldout/{task.name}/{task.version}/{index}".encode()
        return Job(
            prompt=await self.host.prompt("heldout", index),
            seeds=[hashlib.blake2b(named, digest_size=16).digest()],
            limit=self.limit,
            eos=self.eos,
            task=task.name,
            task_version=task.version,
            split="heldout",
            index=index,
            single_turn=task.kind == SINGLE,
        )

    async def successes(self, jobs: Sequence[Job], groups: Sequence[Sequence[Sample]]) -> float:
        """Return the share of the answers that solve their prompt."""
        answers = [(job, sample) for job, group in zip(jobs, groups, strict=True) for sample in group]
        solved = await asyncio.gather(*(self._solved(job, sample) for job, sample in answers))
        return sum(solved) / max(1, len(solved))

    async def _solved(self, job: Job, sample: Sample) -> bool:
        transcript = Transcript(sample.tokens, sample.turns)
        try:
            return (await self.host.score("heldout", job.index, transcript, job.limit)).success
        except TaskFault as fault:
            log.warning("held-out answer not scored", task=job.task, index=job.index, reason=str(fault))
            return False


async def evaluate(
    evaluation_set: EvaluationSet,
    scorer: Scorer,
    *,
    hold: Callable[[], Awaitable[None]],
    version: int,
    clock: Callable[[], float],
    between: Callable[[], Awaitable[None]],
) -> Evaluation:
    """Generate the answers with `scorer` under `version`, and return the shares solved. `hold`: loads the version into
    the scorer. `between`: called before every `SLICE` answers, for work that goes first; it may load another version.
    Raises `ChildDied`, `ChildError`."""
    jobs = await evaluation_set.jobs()
    shares = []
    for greedy in (False, True):
        answers: list[list[Sample]] = []
        for start in range(0, len(jobs), SLICE):
            await between()
            await hold()
            answers += await scorer.generate_all([replace(job, greedy=greedy) for job in jobs[start : start + SLICE]])
        shares.append(await evaluation_set.successes(jobs, answers))
    return Evaluation(version=version, at=int(clock() * 1000), prompts=len(jobs), sampled=shares[0], greedy=shares[1])
