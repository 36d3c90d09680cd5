"""The scorer at work: every received group is judged under the exact version that its lease names, then evaluations.

Rules
1. Verdicts come before evaluations: an exam is sat when nothing waits, or when it has waited for `PATIENCE` seconds,
   in slices, between which every group that has come is judged.
2. Groups are taken by version, so that the scorer changes its weights as seldom as it can (`turns`), and the scorer
   steps to each in place (`held`).
3. A scorer that dies costs no verdict: what it had not answered is still undecided, and is scored by the next one.
4. A group at which the scorer fails is tried again by a new one. Only a group at which that fails too is refused, by
   the operator's fault: one bad group must not stop all the others.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from coordinator.admission import floats
from coordinator.books import Books
from coordinator.evaluation import Exam, evaluate
from coordinator.held import ScorerWeights
from coordinator.history import History
from coordinator.intake import Undecided
from coordinator.processes import Scorer
from coordinator.publisher import Publisher
from coordinator.turns import VISIT, pick
from engines.child import ChildDied, ChildError
from engines.engine import Job, Sample

PATIENCE = 2.0

log = structlog.get_logger("coordinator")


@dataclass
class Scoring:
    """`evaluate_every`: versions from one evaluation to the next; the first and the last are always evaluated."""

    scorer: Scorer
    books: Books
    publisher: Publisher
    history: History
    exam: Exam
    weights: ScorerWeights
    evaluate_every: int
    eos: int
    clock: Callable[[], float]
    arrived: asyncio.Event
    """Set when a submission was received, a version published, or the course has ended."""
    decided: asyncio.Event
    """Set here whenever a verdict was given."""
    _wanted_since: float | None = None
    _failed: set[bytes] = field(default_factory=set)
    _version: int | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.arrived.clear()
            try:
                worked = await self.round()
            except ChildDied:
                continue
            if not worked:
                await self.arrived.wait()

    async def round(self) -> bool:
        """Score what waits, or sit an exam; whether there was anything to do. Raises `ChildDied`."""
        if self.books.progress is None:
            return False
        waiting = self.books.waiting()
        version = self._exam_due()
        if version is not None and (not waiting or self._has_waited()):
            await self._examine(version)
            return True
        self._wanted_since = None if version is None else self._wanted_since or self.clock()
        await self._judge_waiting()
        return bool(waiting) or version is not None

    async def _judge_waiting(self) -> None:
        while (under := pick(self.books.waiting(), self._version, self._now())) is not None:
            for group in self.books.undecided(VISIT, under=under):
                await self._judge(group)

    async def _judge(self, group: Undecided) -> None:
        lease = group.lease
        if await self._hold(lease.version, lease.root):
            await self._score(group)
        else:
            self.books.give_up(group, self._now())
            log.error("a version is gone that a group waits for", version=lease.version)
        self.decided.set()

    async def _score(self, group: Undecided) -> None:
        try:
            scores = await self.scorer.score(self._job(group), self._samples(group))
        except ChildError as error:
            await self._fail(group, error)
        else:
            self.books.decide(group, scores, self._now())

    async def _fail(self, group: Undecided, error: ChildError) -> None:
        """Rule 4."""
        lease = group.lease.id
        log.error("the scorer failed at a group", lease=lease.hex(), reason=str(error))
        if lease in self._failed:
            self._failed.remove(lease)
            self.books.give_up(group, self._now())
        else:
            self._failed.add(lease)
            await self.scorer.renew()

    async def _hold(self, version: int, root: bytes) -> bool:
        self._version = version
        return await self.weights.hold(root)

    def _job(self, group: Undecided) -> Job:
        lease = group.lease
        return Job(
            prompt=lease.prompt,
            seeds=lease.seeds,
            limit=lease.limit,
            eos=self.eos,
            task=lease.task,
            task_version=lease.task_version,
            split="train",
            index=lease.index,
        )

    def _samples(self, group: Undecided) -> list[Sample]:
        return [
            Sample(tokens=rollout.tokens, turns=rollout.turns, logprobs=list(floats(rollout.logprobs)))
            for rollout in group.submission.rollouts
        ]

    def _exam_due(self) -> int | None:
        """The version that should be evaluated now: the first, every n-th, and the last."""
        latest, at = self.publisher.latest, self.books.progress
        if latest is None or at is None or latest.version in self.history.evaluations:
            return None
        before = max(self.history.evaluations, default=None)
        if before is None or at.finished or latest.version - before >= self.evaluate_every:
            return latest.version
        return None

    def settled(self) -> bool:
        """Whether the course is over and its last version evaluated."""
        at = self.books.progress
        return at is not None and at.finished and self._exam_due() is None

    def _has_waited(self) -> bool:
        return self._wanted_since is not None and self.clock() - self._wanted_since >= PATIENCE

    async def _examine(self, version: int) -> None:
        latest = self.publisher.latest
        assert latest is not None

        async def hold() -> None:
            if not await self._hold(latest.version, latest.root):
                raise RuntimeError(f"published version {latest.version} cannot be made from the store")

        found = await evaluate(
            self.exam,
            self.scorer,
            hold=hold,
            version=version,
            clock=self.clock,
            between=self._judge_waiting,
        )
        self.history.add(found)
        self._wanted_since = None
        log.info("evaluated", version=version, sampled=round(found.sampled, 3), greedy=round(found.greedy, 3))

    def _now(self) -> int:
        return int(self.clock() * 1000)
