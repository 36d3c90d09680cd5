"""Run the scorer: verify every received group under the exact version that its lease names, and evaluate versions.

Rules
1. Verdicts come before evaluations: an evaluation runs when no group waits, or when it has waited for `PATIENCE`
   seconds. It runs in slices, and between two slices received groups are verified: all of them, or those of `PATIENCE`
   seconds. So a scorer that never has all groups verified still evaluates.
2. Groups are scored by version, so that the scorer changes its weights rarely (rollouts/scoring_order.py); it steps to
   each version in place (training/scorer_weights.py). Within a version the parties are served by deficit round robin
   (rollouts/deficit_round_robin.py), and the key's standing decides how a group is verified
   (rollouts/group_verifier.py).
3. Up to `at_once` groups of one version are in flight to the scorer, bounded by their tokens, so that the scorer never
   waits for a verdict and a pass on a GPU is full. Its process scores those that wait there together
   (engines/score_queue.py), and answers each separately. A verdict is given once its scores are back and the scorer
   has the next group; all verdicts of one iteration of the event loop are one transaction. One that fails ends the
   visit.
4. A death of the scorer costs no verdict: unanswered groups stay undecided, and the next scorer scores them.
5. A group at which the scorer fails is tried again alone, by a scorer process that has not failed. If that fails too,
   the group is refused by the operator's fault: one bad group must not stop all others.
6. An evaluation at which the scorer fails is repeated with a new scorer. If that fails too, the version gets no
   evaluation.
7. A group in flight when the scorer died is tried again alone. If the scorer dies `MOST_DEATHS` times while it scores
   that group alone, without being told to end, the group is refused as in rule 5. An evaluation is abandoned after as
   many deaths.
8. Good groups that are drawn for it (`GroupService.draw_pass_before`) are decided at the end of their version's visit:
   the scorer undoes one step and passes all of them under the version before. So a visit costs at most two further
   changes of version. Where one step back does not lead there, or that pass fails, they are decided without it.
9. A good group whose task runs in an environment is decided once that has scored it (training/reward_loop.py).
10. Further checks of verdicts come before both, each whole (training/review_loop.py). Appeals are few by their share of
    the scorer's time, and between two checks the groups that wait have a round.
11. Held-out groups that are left to the scorer (training/heldout_evaluation.py) wait like an evaluation, a slice at a
    time, and after it. Where their version is gone, or the scorer has failed or died at them `MOST_EVALUATIONS` times,
    they are lost.
12. A group that agrees with a known one is decided without the scorer: a canary with its answer (rollouts/canaries.py),
    an audited group with another node's (rollouts/audits.py).
13. Where nothing else waits, the scorer makes an answer for a canary that was wanted: one group at a time, at most
    `FOR_ANSWERS` of its time, and `WHILE_SHORT` while the learner lacks groups for its next batch: groups that come
    during an answer wait for its end, and the learner for them.
14. While an evaluation, or a held-out group, waits for an environment that poses prompts or scores single answers, the
    scorer has its other rounds. So no environment keeps verdicts waiting, however long it takes. Where a served task
    cannot be opened, evaluation and held-out groups are tried again after `AWAY` seconds.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from coordinator.environments.task_host import EnvironmentAway
from coordinator.metrics.history import History
from coordinator.publishing.publisher import Publisher
from coordinator.rollouts.canary_answers import WantedAnswer
from coordinator.rollouts.group_service import GroupService
from coordinator.rollouts.group_verifier import GroupVerifier
from coordinator.rollouts.heldout_plans import HeldoutGroup
from coordinator.rollouts.lease_terms import LeaseTerms
from coordinator.rollouts.scorer import Scorer
from coordinator.rollouts.scoring_order import VISIT, PendingVersion, next_version
from coordinator.rollouts.verification import Verdict
from coordinator.rollouts.waiting_groups import Undecided, Visit
from coordinator.training.evaluation import EvaluationSet, VersionGone, evaluate
from coordinator.training.guarding import Guarding
from coordinator.training.heldout_evaluation import HeldoutEvaluation
from coordinator.training.review_loop import Reviewing
from coordinator.training.reward_loop import Rewarding
from coordinator.training.scorer_weights import ScorerWeights
from coordinator.training.verified_rate import VerifiedRate
from engines.engine import Job
from runtime.child import ChildDied, ChildError

PATIENCE = 2.0
"""Seconds for which an evaluation lets groups go first."""
MOST_EVALUATIONS = 2
"""Attempts at one version's evaluation (rule 6)."""
MOST_DEATHS = 3
FOR_ANSWERS = 0.05
WHILE_SHORT = 0.01
"""Shares of the scorer's time (rule 13)."""
MOST_TOKENS = 1 << 19
"""Most tokens in flight to the scorer, unless two groups have more: some 2 MiB in its pipe."""
AT_HAND = 0.05
"""Seconds within which an environment's work is waited for, before the scorer turns to other work (rule 14)."""
AWAY = 10.0
T = TypeVar("T")

log = structlog.get_logger("coordinator")


def at_once(terms: LeaseTerms) -> int:
    """Return how many groups may be in flight to the scorer (rule 3): at least two, so that it is never idle, and at
    most those of a visit."""
    return max(2, min(VISIT, MOST_TOKENS // (terms.group_size * terms.limit)))


@dataclass
class Scoring:
    """The loop of the scorer. `evaluate_every`: versions from one evaluation to the next; the first and the last are
    always evaluated."""

    scorer: Scorer
    group_service: GroupService
    publisher: Publisher
    history: History
    evaluation_sets: Sequence[EvaluationSet]
    weights: ScorerWeights
    verifier: GroupVerifier
    evaluate_every: int
    clock: Callable[[], float]
    arrived: asyncio.Event
    """Set when a submission was received, a version was published, or the run is finished."""
    decided: asyncio.Event
    """Set by this loop after each verdict."""
    rewarding: Rewarding | None = None
    """Takes the good groups of a task that runs in an environment (rule 9)."""
    heldout: HeldoutEvaluation | None = None
    """Leaves held-out groups to the scorer (rule 11)."""
    reviewing: Reviewing | None = None
    """Makes further checks of verdicts (rule 10)."""
    guarding: Guarding | None = None
    """Gets each evaluation."""
    rate: VerifiedRate = field(default_factory=VerifiedRate)
    _checked: bool = False
    """Whether the last round was a further check: between two of them waiting groups have a round."""
    _wanted_since: float | None = None
    _failed: dict[bytes, Undecided] = field(default_factory=dict)
    """Groups at which a scorer failed or died once, by lease."""
    _deaths: Counter[bytes] = field(default_factory=Counter)
    """Deaths of the scorer while it scored a group alone, by lease (rule 7)."""
    _drawn: list[tuple[Undecided, Verdict]] = field(default_factory=list)
    """Good groups of the present visit that wait for their pass under the version before (rule 8)."""
    _judged: list[tuple[Undecided, Verdict]] = field(default_factory=list)
    """Groups whose verdicts were given in this iteration of the event loop."""
    _undecidable: Exception | None = None
    """The first error of a verdict of the present visit, which ends with it."""
    _fresh: bool = True
    """Whether the present scorer process has not failed at any group."""
    _verdicts: int = 0
    """Groups that the present visit has decided."""
    _version: int | None = None
    _answer_ended: float = 0.0
    _answer_took: float = 0.0
    """End of the last answer, and its duration (rule 13), seconds."""
    _failed_evaluations: Counter[int] = field(default_factory=Counter)
    """Failures of the scorer at a version's evaluation."""
    _failed_heldout: Counter[int] = field(default_factory=Counter)
    """Failures and deaths of the scorer at held-out groups, by version."""
    _deadly_evaluations: Counter[int] = field(default_factory=Counter)
    """Deaths of the scorer during a version's evaluation."""
    _evaluating: bool = False
    """Whether an evaluation, or a held-out group, waits for an environment (rule 14)."""
    _evaluate_from: float = 0.0
    """Before then nothing is evaluated, as an environment is away (rule 14), seconds."""

    async def run(self) -> None:
        """Score and evaluate, until cancelled."""
        while True:
            self.arrived.clear()
            try:
                worked = await self.round()
            except ChildDied:
                continue
            if not worked:
                await self.arrived.wait()

    async def round(self) -> bool:
        """Score the waiting groups, or run an evaluation; return whether there was work. Raises `ChildDied`."""
        if self.group_service.progress is None:
            return False
        waiting = self.group_service.waiting()
        review = None if self.reviewing is None or (self._checked and waiting) else self.reviewing.due()
        self._checked = review is not None
        if self.reviewing is not None and review is not None:
            await self.reviewing.make(review, self._hold)
            return True
        may = not self._evaluating and self.clock() >= self._evaluate_from
        version = self._evaluation_due() if may else None
        left = self.heldout.left_to_scorer() if may and version is None and self.heldout is not None else []
        wanted = version is not None or bool(left)
        if wanted and (not waiting or self._has_waited()):
            if version is not None:
                await self._evaluate(version)
            elif self.heldout is not None:
                await self._generate_heldout(self.heldout, left)
            return True
        self._wanted_since = (self._wanted_since or self.clock()) if wanted else None
        await self._judge_waiting(self.clock() if self._evaluating else self._wanted_since)
        return bool(waiting) or wanted or await self._make_answer()

    async def _meanwhile(self, work: Awaitable[T]) -> T:
        """Await work of an environment; meanwhile the scorer has its other rounds (rule 14)."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: self.arrived.set())
        self._evaluating = True
        try:
            await asyncio.wait([task], timeout=AT_HAND)
            while not task.done():
                self.arrived.clear()
                with contextlib.suppress(ChildDied):
                    if not await self.round() and not task.done():
                        await self.arrived.wait()
            return task.result()
        finally:
            self._evaluating = False
            task.cancel()

    async def _make_answer(self) -> bool:
        """Make an answer of a canary (rule 13); return whether one was due."""
        at, began = self.group_service.progress, self.clock()
        wanted = self.group_service.wanted_answer() if began >= self._answers_from() else None
        if at is None or wanted is None:
            return False
        try:
            if not await self._hold(at.version, at.root):
                return False
            (samples,) = await self.scorer.generate_all([self._job_of(wanted)])
            self.group_service.answer_made(at.version, wanted, samples, self._now())
        except ChildError as error:
            log.error("scorer failed at the answer of a canary", task=wanted.prompt.task, reason=str(error))
            await self.scorer.renew()
        finally:
            self._answer_ended = self.clock()
            self._answer_took = self._answer_ended - began
        return True

    def _answers_from(self) -> float:
        """Return from when on the next answer may be made (rule 13), seconds."""
        has_batch = self.group_service.buffered() >= self.group_service.terms.batch_groups
        return self._answer_ended + self._answer_took * (1 / (FOR_ANSWERS if has_batch else WHILE_SHORT) - 1)

    def _job_of(self, wanted: WantedAnswer) -> Job:
        prompt, terms = wanted.prompt, self.group_service.terms
        return Job(
            prompt=prompt.tokens,
            seeds=wanted.seeds,
            limit=terms.limit,
            eos=self.verifier.ends[0],
            other_ends=self.verifier.ends[1:],
            task=prompt.task,
            task_version=prompt.task_version,
            split="train",
            index=prompt.index,
            single_turn=self.group_service.is_single(prompt.task, prompt.task_version),
        )

    async def _generate_heldout(self, heldout: HeldoutEvaluation, left: Sequence[HeldoutGroup]) -> None:
        version = left[0].version
        self._wanted_since = None

        async def hold() -> bool:
            return await self._hold(version, left[0].root)

        if self._failed_heldout[version] >= MOST_EVALUATIONS or not await hold():
            heldout.lose(left[0])
            return
        try:
            await heldout.generate(self.scorer, left, hold=hold, meanwhile=self._meanwhile)
        except VersionGone:
            heldout.lose(left[0])
        except EnvironmentAway as away:
            self._put_off(away)
        except ChildDied as death:
            self._failed_heldout[version] += not death.told
            raise
        except ChildError as error:
            self._failed_heldout[version] += 1
            log.error("scorer failed at held-out groups", version=version, reason=str(error))
            await self.scorer.renew()

    async def _judge_waiting(self, since: float | None) -> None:
        """Verify the waiting groups, those of one visit at least. `since`: seconds; the visits end `PATIENCE` later.
        None: once no group waits."""
        while (under := next_version(self.group_service.waiting(), self._version, self._now())) is not None:
            await self._visit(under)
            if since is not None and self.clock() - since >= PATIENCE:
                return

    async def _visit(self, under: PendingVersion) -> None:
        """Verify at most `VISIT` waiting groups of one version: first together, then each failed one alone."""
        groups = self._not_compared(_taken(self.group_service.visit(under)))
        first = next(groups, None)
        if first is None:
            return
        if not await self._hold(first.lease.version, first.lease.root):
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
        self.rate.visited(rollouts, self.clock() - began, full=self._verdicts > together)
        for group in [one for one in self._failed.values() if one.lease.root == first.lease.root]:
            await self._judge_alone(group)

    def _not_compared(self, groups: Iterator[Undecided]) -> Generator[Undecided, None, None]:
        """Yield the groups that must be scored; decide the others at once (rule 12)."""
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
        """Pass the groups that were drawn under the version before that of `root`, and decide them (rule 8)."""
        drawn = iter(self._drawn)
        before = self.weights.before(root) if self._drawn else None
        if before is not None and await self._hold(before.version, before.root):
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
        """Retry a group at which the scorer failed or died (rules 5 and 7)."""
        if not self._fresh:
            await self.scorer.renew()
            self._fresh = True
        if not await self._hold(group.lease.version, group.lease.root):
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
        """Decide a group with all others whose verdicts this iteration of the event loop gives, at its end (rule 3)."""
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

    async def _hold(self, version: int, root: bytes) -> bool:
        self._version = version
        return await self.weights.hold(root)

    def _evaluation_due(self) -> int | None:
        """Return the version to evaluate now, or None: the first, every n-th, and the last are evaluated."""
        latest, at = self.publisher.latest, self.group_service.progress
        if latest is None or at is None or latest.version in self.history.evaluations:
            return None
        if self._failed_evaluations[latest.version] >= MOST_EVALUATIONS:
            return None
        before = max(self.history.evaluations, default=None)
        if before is None or at.finished or latest.version - before >= self.evaluate_every:
            return latest.version
        return None

    def settled(self) -> bool:
        """Tell whether the last step is done and its version evaluated."""
        at = self.group_service.progress
        if at is None or not at.finished or self._evaluation_due() is not None:
            return False
        return self.heldout is None or self.heldout.settled()

    def _has_waited(self) -> bool:
        return self._wanted_since is not None and self.clock() - self._wanted_since >= PATIENCE

    async def _evaluate(self, version: int) -> None:
        latest = self.publisher.latest
        assert latest is not None

        async def hold() -> bool:
            return await self._hold(latest.version, latest.root)

        judging = False

        async def between() -> None:
            nonlocal judging
            judging = True
            await self._judge_waiting(self.clock())
            judging = False

        self._wanted_since = None
        if self.guarding is not None:
            self.guarding.examining(latest)
        try:
            success = await evaluate(
                self.evaluation_sets, self.scorer, hold=hold, version=version, clock=self.clock, between=between,
                meanwhile=self._meanwhile,
            )  # fmt: skip
        except EnvironmentAway as away:
            self._put_off(away)
            return
        except VersionGone:
            self._failed_evaluations[version] = MOST_EVALUATIONS
            log.error("evaluation left out: its version is no longer available", version=version)
            return
        except ChildDied as death:
            self._deadly_evaluations[version] += not (judging or death.told)
            if self._deadly_evaluations[version] >= MOST_DEATHS:
                self._failed_evaluations[version] = MOST_EVALUATIONS
                log.error("scorer died at an evaluation again: left out", version=version, reason=str(death))
            raise
        except ChildError as error:
            self._failed_evaluations[version] += 1
            log.error("scorer failed at an evaluation", version=version, reason=str(error))
            await self.scorer.renew()
            return
        self.history.add(success)
        if self.guarding is not None:
            self.guarding.evaluated(success, latest)
        log.info("evaluated", version=version, sampled=round(success.sampled, 3), greedy=round(success.greedy, 3))

    def _put_off(self, away: EnvironmentAway) -> None:
        """Evaluate nothing for a while: an environment cannot be opened (rule 14)."""
        log.warning("evaluation put off", reason=str(away), again_seconds=AWAY)
        self._evaluate_from = self.clock() + AWAY
        asyncio.get_running_loop().call_later(1.01 * AWAY, self.arrived.set)

    def _now(self) -> int:
        return int(self.clock() * 1000)


def _taken(visit: Visit) -> Iterator[Undecided]:
    """Yield at most `VISIT` groups of a visit."""
    for _ in range(VISIT):
        group = visit.take()
        if group is None:
            return
        yield group


async def _all(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of `parts` to their ends, then raise one of their errors: any other before `ChildDied`."""
    errors = [error for error in await asyncio.gather(*parts, return_exceptions=True) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, ChildDied)):
        raise error
