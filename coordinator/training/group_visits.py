"""Verify received groups under the exact version that each lease names, and decide them: visits of the scorer.

Rules
1. Groups are scored by version, so that the scorer changes its weights rarely (verdicts/scoring_order.py); it steps to
   each version in place (training/scorer_weights.py). Within a version the parties are served by deficit round robin
   (verdicts/deficit_round_robin.py), and the key's standing decides how a group is verified
   (verdicts/group_verifier.py).
2. Up to `at_once` groups of one version are in flight to the scorer, bounded by their tokens, so that the scorer never
   waits for a verdict and a pass on a GPU is full. Its process scores those that wait there together
   (engines/process/score_queue.py), and answers each separately. A verdict is given once its scores are back and the
   scorer has the next group; all verdicts of one iteration of the event loop are one transaction. One that fails ends
   the visit.
3. A death of the scorer costs no verdict: unanswered groups stay undecided, and the next scorer scores them.
4. A group at which the scorer fails is tried again alone, by a scorer process that has not failed. If that fails too,
   the group is refused by the operator's fault: one bad group must not stop all others.
5. A group in flight when the scorer died is tried again alone. If the scorer dies `MOST_DEATHS` times while it scores
   that group alone, without being told to end, the group is refused as in rule 4.
6. Good groups that are drawn for it (`GroupService.draw_pass_before`) are decided at the end of their version's visit:
   the scorer undoes one step and passes all of them under the version before. So a visit costs at most two further
   changes of version. Where one step back does not lead there, or that pass fails, they are decided without it.
7. A good group whose task runs in an environment is decided once that has scored it (training/reward_loop.py).
8. A group that agrees with a known one is decided without the scorer: a canary with its answer
   (leases/kinds/canaries.py), an audited group with another node's (leases/kinds/audits.py).
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from echo2.coordinator.learner.age import oldest_fresh
from echo2.coordinator.leases.lease_terms import LeaseTerms
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.review_loop import Reviewing
from echo2.coordinator.training.reward_loop import Rewarding
from echo2.coordinator.training.scorer_weights import ScorerWeights
from echo2.coordinator.training.verified_rate import VerifiedRate
from echo2.coordinator.verdicts.group_verifier import GroupVerifier
from echo2.coordinator.verdicts.scoring_order import VISIT_GROUPS, PendingVersion, next_version
from echo2.coordinator.verdicts.waiting_groups import Undecided, Visit
from echo2.coordinator.verification.scorer import Scorer
from echo2.coordinator.verification.verification import Verdict
from echo2.runtime.child import ChildDied, ChildError

MOST_DEATHS = 3
MOST_TOKENS = 1 << 19
"""Most tokens in flight to the scorer, unless two groups have more: some 2 MiB in its pipe."""

log = structlog.get_logger("coordinator")


def at_once(terms: LeaseTerms) -> int:
    """Return how many groups may be in flight to the scorer (rule 2): at least two, so that it is never idle, and at
    most those of a visit."""
    return max(2, min(VISIT_GROUPS, MOST_TOKENS // (terms.group_size * terms.limit)))


@dataclass
class GroupVisits:
    """The visits of the scorer to groups that wait for their verdicts."""

    scorer: Scorer
    group_service: GroupService
    weights: ScorerWeights
    verifier: GroupVerifier
    clock: Callable[[], float]
    decided: asyncio.Event
    """Set after each verdict."""
    rewarding: Rewarding | None = None
    """Takes the good groups of a task that runs in an environment (rule 7)."""
    reviewing: Reviewing | None = None
    """Learns how long the scorer works on groups."""
    rate: VerifiedRate = field(default_factory=VerifiedRate)
    _failed: dict[bytes, Undecided] = field(default_factory=dict)
    """Groups at which a scorer failed or died once, by lease."""
    _deaths: Counter[bytes] = field(default_factory=Counter)
    """Deaths of the scorer while it scored a group alone, by lease (rule 5)."""
    _drawn: list[tuple[Undecided, Verdict]] = field(default_factory=list)
    """Good groups of the present visit that wait for their pass under the version before (rule 6)."""
    _judged: list[tuple[Undecided, Verdict]] = field(default_factory=list)
    """Groups whose verdicts were given in this iteration of the event loop."""
    _undecidable: Exception | None = None
    """The first error of a verdict of the present visit, which ends with it."""
    _fresh: bool = True
    """Whether the present scorer process has not failed at any group."""
    _verdicts: int = 0
    """Groups that the present visit has decided."""
    _version: int | None = None

    async def judge_waiting(self, until: float | None) -> None:
        """Verify the waiting groups, those of one visit at least. `until`: seconds from which on no further visit
        begins; None: the visits end once no group waits."""
        while (under := self._next()) is not None:
            await self._visit(under)
            if until is not None and self.clock() >= until:
                return

    def _next(self) -> PendingVersion | None:
        at, staleness = self.group_service.progress, self.group_service.terms.staleness
        oldest = 0 if at is None else oldest_fresh(at.step, staleness)
        return next_version(self.group_service.waiting(), self._version, self._now(), oldest)

    async def _visit(self, under: PendingVersion) -> None:
        """Verify at most `VISIT_GROUPS` waiting groups of one version: first together, then each failed one alone."""
        groups = self._not_compared(_groups_of_visit(self.group_service.visit(under)))
        first = next(groups, None)
        if first is None:
            return
        if not await self.hold(first.lease.version, first.lease.root):
            log.error("cannot score groups: their version is no longer available", version=under.version)
            for group in itertools.chain([first], groups):
                self._give_up(group)
            return
        self._drawn.clear()
        began, self._verdicts, together = self.clock(), 0, at_once(self.group_service.terms)
        todo = (group for group in itertools.chain([first], groups) if group.lease.id not in self._failed)
        begun = list(itertools.islice(todo, together))  # no task is made for a group that is not there
        try:
            await _all(self._judge_each(group, todo) for group in begun)
        finally:
            self._decide_judged(self._now())
            failure, self._undecidable = self._undecidable, None
            if failure is not None:
                raise failure
        await self._pass_before(first.lease.root)
        rollouts = self._verdicts * self.group_service.terms.group_size
        if self.reviewing is not None:
            self.reviewing.note_scoring(self.clock() - began)
        self.rate.on_visit(rollouts, self.clock() - began, full=self._verdicts > together)
        for group in [one for one in self._failed.values() if one.lease.root == first.lease.root]:
            await self._judge_alone(group)

    def _not_compared(self, groups: Iterator[Undecided]) -> Generator[Undecided, None, None]:
        """Yield the groups that must be scored; decide the others at once (rule 8)."""
        for group in groups:
            verdict = self.group_service.compare_known(group)
            if verdict is None:
                yield group
            else:
                self._decide(group, verdict)

    async def _judge_each(self, group: Undecided | None, groups: Generator[Undecided, None, None]) -> None:
        """Verify a group and then one after the other, concurrently with others on the same generator, until the scorer
        fails or dies, or a verdict fails."""
        while self.scorer.loaded is not None and group is not None and self._undecidable is None:
            try:
                verdict = await self._verify(group)
                if verdict.accepted and self.group_service.draw_pass_before(group):
                    self._drawn.append((group, verdict))
                else:
                    self._decide_soon(group, verdict)
            except ChildDied:
                self._failed[group.lease.id] = group
                raise
            except ChildError as error:
                groups.close()
                self._fresh = False
                self._failed[group.lease.id] = group
                log.error("scorer failed", lease=group.lease.id.hex(), reason=str(error))
            group = next(groups, None)

    async def _pass_before(self, root: bytes) -> None:
        """Pass the groups that were drawn under the version before that of `root`, and decide them (rule 6)."""
        drawn = iter(self._drawn)
        before = self.weights.before(root) if self._drawn else None
        if before is not None and await self.hold(before.version, before.root):
            together = min(len(self._drawn), at_once(self.group_service.terms))
            await _all(self._pass_each(drawn) for _ in range(together))
        for group, verdict in drawn:
            self._decide(group, verdict)

    async def _pass_each(self, drawn: Iterator[tuple[Undecided, Verdict]]) -> None:
        while self.scorer.loaded is not None and (one := next(drawn, None)) is not None:
            group, verdict = one
            try:
                verdict = await self.verifier.pass_before(group, verdict)
            except ChildDied:
                self._failed[group.lease.id] = group
                raise
            except ChildError as error:
                self._fresh = False
                log.error("scorer failed under the version before", lease=group.lease.id.hex(), reason=str(error))
            self._decide(group, verdict)

    async def _judge_alone(self, group: Undecided) -> None:
        """Retry a group at which the scorer failed or died (rules 4 and 5)."""
        if not self._fresh:
            await self.scorer.renew()
            self._fresh = True
        if not await self.hold(group.lease.version, group.lease.root):
            self._give_up(group)
            return
        try:
            self._decide(group, await self._verify(group))
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

    async def _verify(self, group: Undecided) -> Verdict:
        return await self.verifier.verify(group, self.group_service.draw_first_sample(group, self._now()))

    def _decide_soon(self, group: Undecided, verdict: Verdict) -> None:
        """Decide a group with all others whose verdicts this iteration of the event loop gives, at its end (rule 2)."""
        if not self._judged:
            asyncio.get_running_loop().call_soon(self._decide_judged, self._now())
        self._judged.append((group, verdict))

    def _decide_judged(self, now: int) -> None:
        judged, self._judged = self._judged, []
        try:
            self._decide_all(judged, now)
        except Exception as failure:
            self._undecidable = self._undecidable or failure

    def _decide(self, group: Undecided, verdict: Verdict) -> None:
        self._decide_all([(group, verdict)], self._now())

    def _decide_all(self, judged: Sequence[tuple[Undecided, Verdict]], now: int) -> None:
        decided = []
        for group, verdict in judged:
            if self.rewarding is not None and verdict.accepted and self.group_service.is_rewarded_later(group):
                self.rewarding.put(group, verdict)
            else:
                decided.append((group, verdict))
        if decided:
            self.group_service.decide_all(decided, now)
        for group, _ in judged:
            self._end(group)

    def _give_up(self, group: Undecided, why: str | None = None) -> None:
        self.group_service.refuse_unscorable(group, self._now(), why)
        self._end(group)

    def _end(self, group: Undecided) -> None:
        self._verdicts += 1
        self._failed.pop(group.lease.id, None)
        self._deaths.pop(group.lease.id, None)
        self.decided.set()

    async def hold(self, version: int, root: bytes) -> bool:
        """Load a version into the scorer; False if it is no longer available."""
        self._version = version
        return await self.weights.hold(root)

    def _now(self) -> int:
        return int(self.clock() * 1000)


def _groups_of_visit(visit: Visit) -> Iterator[Undecided]:
    """Yield at most `VISIT_GROUPS` groups of a visit."""
    for _ in range(VISIT_GROUPS):
        group = visit.take()
        if group is None:
            return
        yield group


async def _all(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of `parts` to their ends, then raise one of their errors: any other before `ChildDied`."""
    errors = [error for error in await asyncio.gather(*parts, return_exceptions=True) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, ChildDied)):
        raise error
