"""Evaluate versions by held-out groups that volunteers generate; the operator's scorer generates the rest.

    published ─ plan ─> leased (prompts/heldout_plans.py) ─ verdicts ─> all in ─> result
                            └──── what is left ──> scorer ───────────────┘

Rules
1. The first version is planned, every n-th, and the last, each as soon as leases may be requested for it. All groups of
   the last are the scorer's, as a finished run gives no leases. Beside those, none is planned while `MOST_OPEN` plans
   are open: where nodes and scorer cannot keep up, versions are evaluated less often, and none waits or is kept longer.
2. The prompts are posed once, at the start; until then no version is planned. Tasks do not wait for each other's.
3. A result is recorded once, by the transaction that closes its plan; the best one stands in run.sqlite.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import structlog

from echo2.coordinator.metrics.history import History
from echo2.coordinator.metrics.views import HeldoutRate, HeldoutResult
from echo2.coordinator.prompts.heldout_plans import AnsweredGroup, ClosedPlan, HeldoutGroup, HeldoutPrompt, PromptKey
from echo2.coordinator.prompts.pass_rates import PromptAnswers, pass_rate
from echo2.coordinator.prompts.prompts import Prompt
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.evaluation import EvaluationSet, Meanwhile, VersionGone
from echo2.coordinator.verification.scorer import Scorer
from echo2.engines.engine import Job
from echo2.tasks.task import TaskFault

LOOK = 1.0
"""Seconds between two looks for groups that are left to the scorer, and for plans that are all in."""
MOST_OPEN = 8
"""Plans. Nodes have the time of `NEWER` versions for each (prompts/heldout_plans.py)."""

log = structlog.get_logger("coordinator")


class HeldoutEvaluation:
    """The evaluation of versions by volunteers. `groups`: of each task and version; 0: there is no such evaluation."""

    def __init__(
        self,
        group_service: GroupService,
        evaluation_sets: Sequence[EvaluationSet],
        history: History,
        *,
        groups: int,
        every: int,
        clock: Callable[[], float],
        left: Callable[[], None],
        rated: Callable[[HeldoutResult], None] = lambda result: None,
    ) -> None:
        """`every`: versions from one plan to the next. `clock`: seconds since the Unix epoch. `left`: called where
        groups are left to the scorer. `rated`: called with each result."""
        self._group_service, self._history = group_service, history
        self._plans, self._database = group_service.leases.heldout, group_service.database
        self._sets = {one.host.facts.name: one for one in evaluation_sets}
        self._jobs: dict[PromptKey, Job] = {}
        """The prompts as jobs, as they were posed at the start."""
        self._groups, self._every = groups, every
        self._clock, self._left, self._rated = clock, left, rated

    async def run(self) -> None:
        """Pose the prompts, then look after the plans, until cancelled."""
        if not self._groups:
            return
        await self.pose()
        while True:
            self.look()
            await asyncio.sleep(LOOK)

    async def pose(self) -> None:
        """Pose the prompts (rule 2)."""
        samples = self._group_service.terms.group_size
        posed = await asyncio.gather(*(one.groups(self._groups, samples) for one in self._sets.values()))
        self._jobs = {PromptKey(job.task, job.index): job for jobs in posed for job in jobs}
        self._plans.prompts = {
            key: HeldoutPrompt(Prompt(job.task, job.task_version, job.index, list(job.prompt)), list(job.seeds))
            for key, job in self._jobs.items()
        }

    def look(self) -> None:
        """Plan the newest version if it is due, leave groups to the scorer, and record the results that stand."""
        at, now = self._group_service.progress, int(self._clock() * 1000)
        if at is None or not self._groups:
            return
        with self._database.transaction():
            last = self._plans.last()
            again = last is None or last[0] != at.era or at.version - last[1] >= self._every
            again = again and len(self._plans.open_plans()) < MOST_OPEN
            if again or (at.finished and last is not None and last[1] != at.version):
                self._plans.plan(at.era, at.version, at.root, now)
            self._plans.leave_to_scorer(at.era, finished=at.finished)
            closed = self._plans.close(now)
        for plan in closed:
            self._record(plan, now)
        if self.left_to_scorer():
            self._left()

    def settled(self) -> bool:
        """Tell whether no plan is open, and the finished run's last version has had its own."""
        at, last = self._group_service.progress, self._plans.last()
        if at is None or not self._groups or not self._plans.prompts:
            return True
        return last == (at.era, at.version) and self._plans.oldest_open() is None

    def left_to_scorer(self) -> list[HeldoutGroup]:
        """Return the next groups that the scorer is to generate together, all of one version."""
        answers = min(one.pace.size for one in self._sets.values())
        return self._plans.left_to_scorer(max(1, answers // self._group_service.terms.group_size))

    async def generate(
        self,
        scorer: Scorer,
        groups: Sequence[HeldoutGroup],
        *,
        hold: Callable[[], Awaitable[bool]],
        meanwhile: Meanwhile,
    ) -> None:
        """Generate groups of one version with the scorer. `hold`, `meanwhile`: as of `evaluate`. Raises `VersionGone`,
        `EnvironmentAway`, `ChildDied`, `ChildError`."""
        by_task = defaultdict[str, list[HeldoutGroup]](list)
        for group in groups:
            by_task[group.key.task].append(group)
        for task, some in by_task.items():
            jobs = await meanwhile(self._posed(some))
            if not await hold():
                raise VersionGone
            solved = await self._sets[task].answered(scorer, list(jobs.values()), meanwhile) if jobs else []
            answers = dict(zip(jobs, map(sum, solved), strict=True))
            with self._database.transaction():
                for group in some:
                    told = PromptAnswers(self._group_service.terms.group_size, answers.get(group.id, 0))
                    self._plans.answered(group.id, told, by_operator=True)

    async def _posed(self, groups: Sequence[HeldoutGroup]) -> dict[int, Job]:
        """Return the jobs of groups, by group; one that its task no longer poses has none, and is unsolved."""
        jobs, samples = dict[int, Job](), self._group_service.terms.group_size
        for group in groups:
            try:
                one = self._sets.get(group.key.task)
                if one is None:
                    raise TaskFault("the run has no such task", verified=False)
                jobs[group.id] = self._jobs.get(group.key) or await one.job(group.key.number, samples)
            except TaskFault as fault:
                log.warning("held-out prompt not posed", task=group.key.task, index=group.key.number, reason=str(fault))
        return jobs

    def lose(self, group: HeldoutGroup) -> None:
        """Give up the groups of a version that can no longer be loaded."""
        with self._database.transaction():
            self._plans.lose(group.era, group.version)

    def _record(self, plan: ClosedPlan, now: int) -> None:
        if plan.rate is None:
            log.warning("no held-out result: the version is gone", era=plan.era, version=plan.version)
            return
        by_task = defaultdict[str, list[AnsweredGroup]](list)
        for group in plan.groups:
            by_task[group.key.task].append(group)
        result = HeldoutResult(
            era=plan.era, version=plan.version, at=now, seconds=(now - plan.at) / 1000, rate=_rate("", plan.groups),
            tasks=[_rate(task, groups) for task, groups in by_task.items()],
        )  # fmt: skip
        self._history.add(result)
        self._rated(result)
        log.info(
            "held-out result", version=plan.version, pass_1=round(result.rate.pass_1, 3),
            low=round(result.rate.low, 3), high=round(result.rate.high, 3), by_operator=result.rate.by_operator,
        )  # fmt: skip


def _rate(task: str, groups: Sequence[AnsweredGroup]) -> HeldoutRate:
    rate = pass_rate([group.answers for group in groups])
    return HeldoutRate(
        task=task, prompts=len(groups), answers=sum(group.answers.answers for group in groups),
        by_operator=sum(group.by_operator for group in groups), pass_1=rate.pass_1, low=rate.low, high=rate.high,
        pass_k=list(rate.pass_k.items()),
    )  # fmt: skip
