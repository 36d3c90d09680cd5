"""The scorer at work: every received group is judged under the exact version that its lease names, then evaluations.

Rules
1. Verdicts come before evaluations: an exam is sat when nothing waits, or when it has waited for `PATIENCE` seconds,
   in slices, between which every group that has come is judged.
2. Groups are taken by version, so that the scorer changes its weights as seldom as it can (`turns`), and the scorer
   steps to each in place (`held`). Within a version the parties are served by deficit round robin
   (coordinator/rollouts/deficit_round_robin.py), and how a group is looked at hangs on its key
   (coordinator/rollouts/group_verifier.py).
3. Of one version up to `at_once` groups are at the scorer together, so that it never waits for a commit. A verdict is
   given as soon as its scores are back; verdicts of one iteration of the loop are one commit
   (coordinator/group_commit.py).
4. A scorer that dies costs no verdict: what it had not answered is still undecided, and is scored by the next one.
5. A group at which the scorer fails is tried again: alone, by a scorer that has not failed. Only a group at which that
   fails too is refused, by the operator's fault: one bad group must not stop all the others.
6. An exam at which the scorer fails is sat again with a new scorer. If that fails too, this version stays without one.
7. A group that was at the scorer when it died is tried again alone. One of which it dies alone `MOST_DEATHS` times,
   and nobody had told it to end, is refused as by rule 5; an exam of which it dies as often is left out.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog

from coordinator.metrics.history import History
from coordinator.publishing.publisher import Publisher
from coordinator.rollouts.group_service import GroupService
from coordinator.rollouts.group_verifier import GroupVerifier
from coordinator.rollouts.lease_table import LeaseTerms
from coordinator.rollouts.scorer import Scorer
from coordinator.rollouts.scoring_order import VISIT, PendingVersion, next_version
from coordinator.rollouts.waiting_groups import Undecided, Visit
from coordinator.training.evaluation import EvaluationSet, evaluate
from coordinator.training.scorer_weights import ScorerWeights
from runtime.child import ChildDied, ChildError

PATIENCE = 2.0
MOST_AT_ONCE = 32
MOST_EXAMS = 2
"""Tries at one version's exam (rule 6)."""
MOST_DEATHS = 3
MOST_TOKENS = 1 << 19
"""Tokens at the scorer together, at most, where these are two groups and more: some 2 MiB of its pipe."""

log = structlog.get_logger("coordinator")


def at_once(terms: LeaseTerms) -> int:
    """Groups that are at the scorer together (rule 3): at least two, so that it finds the next when one is done."""
    return max(2, min(MOST_AT_ONCE, MOST_TOKENS // (terms.group_size * terms.limit)))


@dataclass
class Scoring:
    """`evaluate_every`: versions from one evaluation to the next; the first and the last are always evaluated."""

    scorer: Scorer
    group_service: GroupService
    publisher: Publisher
    history: History
    evaluation_set: EvaluationSet
    weights: ScorerWeights
    verifier: GroupVerifier
    evaluate_every: int
    clock: Callable[[], float]
    arrived: asyncio.Event
    """Set when a submission was received, a version published, or the course has ended."""
    decided: asyncio.Event
    """Set here whenever a verdict was given."""
    _wanted_since: float | None = None
    _failed: dict[bytes, Undecided] = field(default_factory=dict)
    """Groups at which a scorer failed or died once, by lease."""
    _deaths: Counter[bytes] = field(default_factory=Counter)
    """How often the scorer died of a group alone, by lease (rule 7)."""
    _fresh: bool = True
    """Whether the scorer at work has not failed at any group."""
    _version: int | None = None
    _failed_exams: Counter[int] = field(default_factory=Counter)
    """How often the scorer failed at a version's exam."""
    _deadly_exams: Counter[int] = field(default_factory=Counter)
    """How often it died of one."""

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
        if self.group_service.progress is None:
            return False
        waiting = self.group_service.waiting()
        version = self._exam_due()
        if version is not None and (not waiting or self._has_waited()):
            await self._examine(version)
            return True
        self._wanted_since = None if version is None else self._wanted_since or self.clock()
        await self._judge_waiting()
        return bool(waiting) or version is not None

    async def _judge_waiting(self) -> None:
        while (under := next_version(self.group_service.waiting(), self._version, self._now())) is not None:
            await self._visit(under)

    async def _visit(self, under: PendingVersion) -> None:
        """Judge what waits under one version, `VISIT` groups at most: together first, then alone what failed."""
        groups = _taken(self.group_service.visit(under))
        first = next(groups)
        if not await self._hold(first.lease.version, first.lease.root):
            log.error("cannot score groups: their version is no longer available", version=under.version)
            for group in itertools.chain([first], groups):
                self._give_up(group)
            return
        todo = (group for group in itertools.chain([first], groups) if group.lease.id not in self._failed)
        await _all(self._judge_each(todo) for _ in range(at_once(self.group_service.terms)))
        for group in [one for one in self._failed.values() if one.lease.root == first.lease.root]:
            await self._judge_alone(group)

    async def _judge_each(self, groups: Generator[Undecided, None, None]) -> None:
        """Take one group after the other, beside others that take from the same, until the scorer fails or dies."""
        while self.scorer.loaded is not None and (group := next(groups, None)) is not None:
            try:
                await self._judge(group)
            except ChildDied:
                self._failed[group.lease.id] = group
                raise
            except ChildError as error:
                groups.close()
                self._fresh = False
                self._failed[group.lease.id] = group
                log.error("scorer failed", lease=group.lease.id.hex(), reason=str(error))

    async def _judge_alone(self, group: Undecided) -> None:
        """Try a group again at which the scorer failed or died (rules 5 and 7)."""
        if not self._fresh:
            await self.scorer.renew()
            self._fresh = True
        if not await self._hold(group.lease.version, group.lease.root):
            self._give_up(group)
            return
        try:
            await self._judge(group)
        except ChildError as error:
            self._fresh = False
            log.error("scorer failed again: group refused", lease=group.lease.id.hex(), reason=str(error))
            self._give_up(group, "the scorer failed at it twice")
        except ChildDied as death:
            self._deaths[group.lease.id] += not death.told
            if self._deaths[group.lease.id] >= MOST_DEATHS:
                log.error("scorer died again: group refused", lease=group.lease.id.hex(), reason=str(death))
                self._give_up(group, f"the scorer died of it {MOST_DEATHS} times")
            raise

    async def _judge(self, group: Undecided) -> None:
        verdict = await self.verifier.verify(group, self.group_service.draw_first_sample(group, self._now()))
        self.group_service.decide(group, verdict, self._now())
        self._end(group)

    def _give_up(self, group: Undecided, why: str | None = None) -> None:
        self.group_service.refuse_unscorable(group, self._now(), why)
        self._end(group)

    def _end(self, group: Undecided) -> None:
        self._failed.pop(group.lease.id, None)
        self._deaths.pop(group.lease.id, None)
        self.decided.set()

    async def _hold(self, version: int, root: bytes) -> bool:
        self._version = version
        return await self.weights.hold(root)

    def _exam_due(self) -> int | None:
        """The version that should be evaluated now: the first, every n-th, and the last."""
        latest, at = self.publisher.latest, self.group_service.progress
        if latest is None or at is None or latest.version in self.history.evaluations:
            return None
        if self._failed_exams[latest.version] >= MOST_EXAMS:
            return None
        before = max(self.history.evaluations, default=None)
        if before is None or at.finished or latest.version - before >= self.evaluate_every:
            return latest.version
        return None

    def settled(self) -> bool:
        """Whether the course is over and its last version evaluated."""
        at = self.group_service.progress
        return at is not None and at.finished and self._exam_due() is None

    def _has_waited(self) -> bool:
        return self._wanted_since is not None and self.clock() - self._wanted_since >= PATIENCE

    async def _examine(self, version: int) -> None:
        latest = self.publisher.latest
        assert latest is not None

        async def hold() -> None:
            if not await self._hold(latest.version, latest.root):
                raise RuntimeError(f"published version {latest.version} cannot be made from the store")

        judging = False

        async def between() -> None:
            nonlocal judging
            judging = True
            await self._judge_waiting()
            judging = False

        self._wanted_since = None
        try:
            success = await evaluate(
                self.evaluation_set, self.scorer, hold=hold, version=version, clock=self.clock, between=between
            )
        except ChildDied as death:
            self._deadly_exams[version] += not (judging or death.told)
            if self._deadly_exams[version] >= MOST_DEATHS:
                self._failed_exams[version] = MOST_EXAMS
                log.error("scorer died at an evaluation again: left out", version=version, reason=str(death))
            raise
        except ChildError as error:
            self._failed_exams[version] += 1
            log.error("scorer failed at an evaluation", version=version, reason=str(error))
            await self.scorer.renew()
            return
        self.history.add(success)
        log.info("evaluated", version=version, sampled=round(success.sampled, 3), greedy=round(success.greedy, 3))

    def _now(self) -> int:
        return int(self.clock() * 1000)


def _taken(visit: Visit) -> Iterator[Undecided]:
    """At most `VISIT` groups of a visit."""
    for _ in range(VISIT):
        group = visit.take()
        if group is None:
            return
        yield group


async def _all(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of `parts` to their ends, then raise an error of theirs: another one rather than `ChildDied`."""
    errors = [error for error in await asyncio.gather(*parts, return_exceptions=True) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, ChildDied)):
        raise error
