"""Verify received groups under the exact version that each lease names, and decide them: visits of a scorer.

Rules
1. Groups are scored by version, so that a scorer changes its weights rarely, and each by one scorer
   (verdicts/group_dispatch.py). It steps to each version in place (scorer_weights/scorer_weights.py). Within a version
   the parties are served by deficit round robin (verdicts/deficit_round_robin.py), and the key's standing decides how a
   group is verified (verdicts/group_verifier.py).
2. Up to `at_once` groups of one version are in flight to the scorer, bounded by their tokens, so that the scorer never
   waits for a verdict and a pass on a GPU is full. Its process scores those that wait there together
   (engines/process/score_queue.py), and answers each separately. A verdict is given once its scores are back and the
   scorer has the next group; all verdicts of one iteration of the event loop are one transaction. One that fails ends
   the visit.
3. A death of a scorer costs no verdict: unanswered groups stay undecided, and the next process scores them, or another
   scorer. A process without weights has no group until it has loaded them, so none waits for a scorer that does not
   come back, or counts its deaths.
4. A group at which the scorer fails is tried again alone, by a scorer process that has not failed. If that fails too,
   the group is refused by the operator's fault: one bad group must not stop all others. Memory that lacks is no fault
   of a group, since another program, or the learner, may give it back: the scorer rests (rule 9), and the group is
   refused once memory lacked for it alone `MOST_SHORTAGES` times.
5. A group in flight when the scorer died is tried again alone. If the scorer dies `MOST_DEATHS` times while it scores
   that group alone, without being told to end, the group is refused as in rule 4.
6. Good groups that are drawn for it (`GroupService.draw_pass_before`) are decided at the end of their version's visit:
   the scorer undoes one step and passes all of them under the version before. So a visit costs at most two further
   changes of version. Where one step back does not lead there, or that pass fails, they are decided without it.
7. A good group whose task runs in an environment is decided once that has scored it (training/reward_loop.py).
8. A group that agrees with a known one is decided without the scorer: a canary with its answer
   (leases/kinds/canaries.py), an audited group with another node's (leases/kinds/audits.py).
9. A scorer that does not start, as its card is gone, rests and is tried again, while others work; where none does, its
   error ends the run. One whose card had memory for the model, and has too little now, rests in any case.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from echo2.coordinator.leases.lease_terms import LeaseTerms
from echo2.coordinator.scorer_weights.scorer_weights import VersionMoves
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.review_loop import Reviewing
from echo2.coordinator.training.reward_loop import Rewarding
from echo2.coordinator.training.verified_rate import VerifiedRate
from echo2.coordinator.verdicts.group_dispatch import LEAST_AHEAD, GroupDispatch, tokens_of
from echo2.coordinator.verdicts.group_verifier import GroupVerifier
from echo2.coordinator.verdicts.scoring_order import VISIT_GROUPS, PendingVersion
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.scorer import Scorer
from echo2.coordinator.verification.verification import Verdict
from echo2.engines.engine import NoMemory
from echo2.runtime.child import ChildDied, ChildError

MOST_DEATHS = 3
MOST_SHORTAGES = 30
"""Times that memory may lack for a group: half an hour, with the rests between them."""
REST_SECONDS = 60.0
"""Seconds until a scorer that does not start, or lacks memory, is tried again (rule 9)."""
MOST_TOKENS = 1 << 19
"""Most tokens in flight to the scorer, unless two groups have more: some 2 MiB in its pipe."""

log = structlog.get_logger("coordinator")


def at_once(terms: LeaseTerms) -> int:
    """Return how many groups may be in flight to the scorer (rule 2): at least two, so that it is never idle, and at
    most those of a visit."""
    return max(2, min(VISIT_GROUPS, MOST_TOKENS // (terms.group_size * terms.limit)))


@dataclass
class GroupVisits:
    """The visits of one scorer to groups that wait for their verdicts. `dispatch`: the groups, of which other scorers
    take theirs. `decided`: set after each verdict. `name`: the scorer's, for people."""

    scorer: Scorer
    group_service: GroupService
    weights: VersionMoves
    verifier: GroupVerifier
    clock: Callable[[], float]
    decided: asyncio.Event
    dispatch: GroupDispatch
    name: str = "scorer"
    rewarding: Rewarding | None = None
    """Takes the good groups of a task that runs in an environment (rule 7)."""
    reviewing: Reviewing | None = None
    """Learns how long the scorer works on groups."""
    rate: VerifiedRate = field(default_factory=VerifiedRate)
    _running: list[asyncio.Task[None]] = field(default_factory=list)
    """Work on further groups of the present visit, as the scorer turns out to be faster."""
    _drawn: list[tuple[Undecided, Verdict]] = field(default_factory=list)
    """Good groups of the present visit that wait for their pass under the version before (rule 6)."""
    _judged: list[tuple[Undecided, Verdict]] = field(default_factory=list)
    """Groups whose verdicts were given in this iteration of the event loop."""
    _undecidable: Exception | None = None
    """The first error of a verdict of the present visit, which ends with it."""
    _fresh: bool = True
    """Whether the present scorer process has not failed at any group."""
    _has_loaded: bool = False
    """Whether a version has fitted into the scorer's memory."""
    _verdicts: int = 0
    """Groups that the present visit has decided."""
    _tokens: int = 0
    """Tokens of these groups."""
    _began: float = math.inf
    """When the scorer had the present visit's version, seconds."""
    _missing: bytes | None = None
    """Root of the newest version, where it could not be loaded."""
    _left: int = 0
    """Groups that the present visit may still take."""

    def __post_init__(self) -> None:
        self.seat = self.dispatch.seat()

    async def run(self, arrived: asyncio.Event) -> None:
        """Verify groups until cancelled: all that a scorer beside the first one does. Where none waits it loads the
        newest version, so that it is ready. `arrived`: set where there may be work."""
        while True:
            arrived.clear()
            try:
                at = self.group_service.progress
                if at is not None:
                    await self.judge_waiting(None)
                    if self.scorer.loaded is None and at.root != self._missing:
                        self._missing = None if await self.hold(at.version, at.root) else at.root
                        continue
                await self.wait(arrived)
            except ChildDied:
                continue
            except ChildError as error:
                await self.rest(error)

    async def wait(self, arrived: asyncio.Event) -> None:
        """Wait for work. No other task runs between the last look for groups and this call."""
        self.seat.idle = True
        try:
            await arrived.wait()
        finally:
            self.seat.idle = False

    async def rest(self, error: ChildError) -> None:
        """Leave the groups to other scorers for a while, as this one does not start, or lacks memory; raise the error
        where that cannot help (rule 9)."""
        lacks_memory = error.kind == NoMemory.__name__ and self._has_loaded
        if not lacks_memory and not self.dispatch.others_work(self.seat):
            raise error
        log.error("scorer rests", scorer=self.name, reason=str(error), again_seconds=REST_SECONDS)
        self.seat.resting = True
        self.dispatch.wake_idle()
        await asyncio.sleep(REST_SECONDS)
        self.seat.resting = False

    def has_waiting(self) -> bool:
        """Tell whether a group waits for this scorer."""
        return self.dispatch.next(self.seat) is not None

    async def judge_waiting(self, until: float | None) -> None:
        """Verify the waiting groups, those of one visit at least. `until`: seconds from which on no further visit
        begins; None: the visits end once no group waits."""
        while (under := self.dispatch.next(self.seat)) is not None:
            await self._visit(under)
            if until is not None and self.clock() >= until:
                return

    async def _visit(self, under: PendingVersion) -> None:
        """Verify at most `VISIT_GROUPS` waiting groups of one version: first together, then each failed one alone.
        Whatever has no verdict at the end is given back."""
        self._left, self._verdicts, self._tokens, self._began = VISIT_GROUPS, 0, 0, math.inf
        try:
            await self._make_ready(self.dispatch.first_of(under))
            first = self._take(under)
            if first is not None:
                await self._judge_together(first, under)
            while (failed := self.dispatch.failed_of(under)) is not None:
                if not self._fresh:
                    await self.scorer.renew()
                    self._fresh = True
                await self._make_ready(failed)
                group = self.dispatch.take_failed(self.seat, under)
                if group is not None:
                    await self._judge_alone(group)
        finally:
            for group, _ in list(self.seat.out.values()):
                self.dispatch.give_back(self.seat, group)

    async def _make_ready(self, group: Undecided | None) -> None:
        """Load a group's version where the scorer has no weights, as after a death; it has no group meanwhile (rule
        3)."""
        if group is not None and self.scorer.loaded is None:
            self.dispatch.wake_idle()
            await self.hold(group.lease.version, group.lease.root)

    async def _judge_together(self, first: Undecided, under: PendingVersion) -> None:
        """Verify groups of one version, several at a time."""
        if not await self.hold(first.lease.version, first.lease.root):
            log.error("cannot score groups: their version is no longer available", version=under.version)
            group: Undecided | None = first
            while group is not None:
                self._give_up(group)
                group = self._take(under)
            return
        self._drawn.clear()
        self._began = self.clock()
        together = at_once(self.group_service.terms)
        more = iter(lambda: self._take(under), None)
        begun = [first, *itertools.islice(more, together - 1)]  # no task is made for a group that is not there
        self.dispatch.wake_idle()
        if len(begun) < together and not self.dispatch.has_next(under):
            self._left = 0  # groups that come meanwhile are the next visit's
        try:
            await self._all(self._judge_each(group, under) for group in begun)
        finally:
            self._decide_judged(self._now())
            failure, self._undecidable = self._undecidable, None
            if failure is not None:
                raise failure
        await self._pass_before(first.lease.root)
        rollouts = self._verdicts * self.group_service.terms.group_size
        if self.reviewing is not None:
            self.reviewing.note_scoring(self.clock() - self._began)
        self.rate.on_visit(rollouts, self.clock() - self._began, full=self._verdicts > len(begun))

    def _take(self, under: PendingVersion) -> Undecided | None:
        """Take the next group that must be scored; decide those before it that need not be (rule 8)."""
        while self._left > 0 and (group := self.dispatch.take(self.seat, under)) is not None:
            self._left -= 1
            verdict = self.group_service.compare_known(group)
            if verdict is None:
                return group
            self._decide(group, verdict)
        return None

    async def _judge_each(self, group: Undecided | None, under: PendingVersion) -> None:
        """Verify a group and then one after the other, beside others that do so, until the scorer fails or dies, or a
        verdict fails."""
        while self.scorer.loaded is not None and group is not None and self._undecidable is None:
            try:
                verdict = await self._verify(group)
                if verdict.accepted and self.group_service.draw_pass_before(group):
                    self._drawn.append((group, verdict))
                else:
                    self._decide_soon(group, verdict)
            except ChildDied:
                self.dispatch.give_back(self.seat, group, failed=True)
                raise
            except ChildError as error:
                self._left = 0
                self._fresh = False
                self.dispatch.give_back(self.seat, group, failed=True)
                log.error("scorer failed", lease=group.lease.id.hex(), reason=str(error))
            group = self._take(under)
            if self.dispatch.is_shared and group is not None:
                self._begin_further(under)  # the scorer may turn out to be faster than was known

    def _begin_further(self, under: PendingVersion) -> None:
        """Begin as many groups beside those under way as the scorer has room for."""
        together = at_once(self.group_service.terms)
        while len(self.seat.out) < together and (further := self._take(under)) is not None:
            self._running.append(asyncio.create_task(self._judge_each(further, under)))

    async def _pass_before(self, root: bytes) -> None:
        """Pass the groups that were drawn under the version before that of `root`, and decide them (rule 6)."""
        drawn = iter(self._drawn)
        before = self.weights.before(root) if self._drawn else None
        if before is not None and await self.hold(before.version, before.root):
            together = min(len(self._drawn), at_once(self.group_service.terms))
            await self._all(self._pass_each(drawn) for _ in range(together))
        for group, verdict in drawn:
            self._decide(group, verdict)

    async def _pass_each(self, drawn: Iterator[tuple[Undecided, Verdict]]) -> None:
        while self.scorer.loaded is not None and (one := next(drawn, None)) is not None:
            group, verdict = one
            try:
                verdict = await self.verifier.pass_before(group, verdict)
            except ChildDied:
                self.dispatch.give_back(self.seat, group, failed=True)
                raise
            except ChildError as error:
                self._fresh = False
                log.error("scorer failed under the version before", lease=group.lease.id.hex(), reason=str(error))
            self._decide(group, verdict)

    async def _judge_alone(self, group: Undecided) -> None:
        """Retry a group at which a scorer failed or died (rules 4 and 5)."""
        try:
            if not await self.hold(group.lease.version, group.lease.root):
                self._give_up(group)
                return
        except (ChildDied, ChildError):
            self.dispatch.give_back(self.seat, group, failed=True)
            raise
        try:
            self._decide(group, await self._verify(group))
        except ChildError as error:
            self._fresh = False
            if error.kind == NoMemory.__name__ and self.dispatch.lacks_memory(group) < MOST_SHORTAGES:
                self.dispatch.give_back(self.seat, group, failed=True)
                raise
            log.error("scorer failed again: group refused", lease=group.lease.id.hex(), reason=str(error))
            self._give_up(group, "the scorer failed at it twice")
        except ChildDied as death:
            self.dispatch.deaths[group.lease.id] += not death.told
            if self.dispatch.deaths[group.lease.id] >= MOST_DEATHS:
                log.error("scorer died again: group refused", lease=group.lease.id.hex(), reason=str(death))
                self._give_up(group, f"the scorer died of it {MOST_DEATHS} times")
            else:
                self.dispatch.give_back(self.seat, group, failed=True)
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
            self._end(group, now)

    def _give_up(self, group: Undecided, why: str | None = None) -> None:
        now = self._now()
        self.group_service.refuse_unscorable(group, now, why)
        self._end(group, now)

    def _end(self, group: Undecided, now: int) -> None:
        self._verdicts += 1
        self._tokens += tokens_of(group)
        taken = now / 1000 - self._began
        if self._verdicts >= LEAST_AHEAD and taken > 0:
            self.seat.tokens_per_second = self._tokens / taken
        self.dispatch.end(self.seat, group)
        self.decided.set()

    async def hold(self, version: int, root: bytes) -> bool:
        """Load a version into the scorer; False if it is no longer available."""
        self.seat.version = version
        loaded = await self.weights.hold(root)
        self._has_loaded = self._has_loaded or loaded
        return loaded

    def _now(self) -> int:
        return int(self.clock() * 1000)

    async def _all(self, parts: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run `parts` and what they begin to their ends, then raise one of their errors: any other before
        `ChildDied`."""
        errors = list[BaseException | None]()
        try:
            errors += await asyncio.gather(*parts, return_exceptions=True)
            while self._running:
                further, self._running = self._running, []
                errors += await asyncio.gather(*further, return_exceptions=True)
        finally:
            for task in self._running:
                task.cancel()
        for error in sorted(filter(None, errors), key=lambda error: isinstance(error, ChildDied)):
            raise error
