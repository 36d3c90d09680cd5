"""Run the scorers: have received groups verified, evaluate versions, and do the further work.

Rules
1. Verdicts (training/group_visits.py) come before evaluations: an evaluation runs when no group waits, nor the learner
   for groups that are on their way, or when it has waited for `EVALUATION_WAIT_SECONDS` seconds. It runs in slices.
   Between two slices groups are verified, and awaited where the learner waits for them, until none is left, or for
   `EVALUATION_WAIT_SECONDS` seconds, or, while the learner lacks groups for its next batch, for nine times as long as
   the last slice took. So a scorer that never has all groups verified still evaluates, for a tenth of its time. A group
   that comes during a slice waits for its end, unless another scorer verifies it (rule 6).
2. An evaluation at which the scorer fails is repeated with a new scorer. If that fails too, the version gets no
   evaluation. It is abandoned as well after `MOST_DEATHS` deaths of the scorer in it.
3. Further checks of verdicts come before both, each whole (training/review_loop.py). Appeals are few by their share of
   the scorer's time, and between two checks the groups that wait have a round.
4. Where nothing else waits, the scorer makes an answer for a canary that was wanted: one group at a time, at most
   `FOR_ANSWERS` of its time, and `WHILE_SHORT` while the learner lacks groups for its next batch: groups that come
   during an answer wait for its end, and the learner for them.
5. While an evaluation waits for an environment that poses prompts or scores single answers, the scorer has its other
   rounds. So no environment keeps verdicts waiting, however long it takes. Where a served task cannot be opened, the
   evaluation is tried again after `SCORER_AWAY_SECONDS` seconds.
6. Of several scorers the first does all this; the others verify groups and nothing else.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from echo2.coordinator.environments.task_host import EnvironmentAway
from echo2.coordinator.leases.kinds.canary_answers import WantedAnswer
from echo2.coordinator.metrics.history import History
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.evaluation import EvaluationSet, VersionGone, evaluate
from echo2.coordinator.training.group_visits import MOST_DEATHS, GroupVisits
from echo2.coordinator.training.guarding import Guarding
from echo2.coordinator.training.review_loop import Reviewing
from echo2.coordinator.verification.scorer import Scorer
from echo2.engines.engine import Job
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import LocalFault

EVALUATION_WAIT_SECONDS = 2.0
"""Seconds for which an evaluation lets groups go first."""
EVALUATIONS_WHILE_SHORT = 0.1
"""Share of the scorer's time for evaluations where groups wait and the learner lacks some."""
MOST_EVALUATIONS = 2
"""Attempts at one version's evaluation (rule 2)."""
FOR_ANSWERS = 0.05
WHILE_SHORT = 0.01
"""Shares of the scorer's time (rule 4)."""
LOOK_SECONDS = 0.25
"""Seconds between two looks whether the learner still waits (rule 1)."""
AT_HAND = 0.05
"""Seconds within which an environment's work is waited for, before the scorer turns to other work (rule 5)."""
SCORER_AWAY_SECONDS = 10.0
T = TypeVar("T")

log = structlog.get_logger("coordinator")


@dataclass
class Scoring:
    """The loop of the scorer. `visits`: verify the groups that wait. `evaluate_every`: versions from one evaluation to
    the next; the first and the last are always evaluated."""

    scorer: Scorer
    group_service: GroupService
    publisher: Publisher
    history: History
    evaluation_sets: Sequence[EvaluationSet]
    visits: GroupVisits
    evaluate_every: int
    clock: Callable[[], float]
    arrived: asyncio.Event
    """Set when a submission was received, a version was published, or the run is finished."""
    reviewing: Reviewing | None = None
    """Makes further checks of verdicts (rule 3)."""
    guarding: Guarding | None = None
    """Gets each evaluation."""
    further: Sequence[GroupVisits] = ()
    """The visits of further scorers (rule 6)."""
    stop_after: int | None = None
    """Evaluations without a better result after which the run ends; None: it does not."""
    end_run: Callable[[], int] = lambda: 0
    """Ends the run, and returns its last step."""
    _checked: bool = False
    """Whether the last round was a further check: between two of them waiting groups have a round."""
    _wanted_since: float | None = None
    _slice_took: float = 0.0
    """Duration of the last slice of an evaluation, seconds."""
    _answer_ended: float = 0.0
    _answer_took: float = 0.0
    """End of the last answer, and its duration (rule 4), seconds."""
    _failed_evaluations: Counter[int] = field(default_factory=Counter)
    """Failures of the scorer at a version's evaluation."""
    _deadly_evaluations: Counter[int] = field(default_factory=Counter)
    """Deaths of the scorer during a version's evaluation."""
    _evaluating: bool = False
    """Whether an evaluation waits for an environment (rule 5)."""
    _evaluate_from: float = 0.0
    """Before then nothing is evaluated, as an environment is away (rule 5), seconds."""
    _look: asyncio.TimerHandle | None = None
    """The next look whether the learner still waits (rule 1)."""

    @property
    def working(self) -> list[GroupVisits]:
        """The visits of the scorers that can work: not of those whose card is gone."""
        return [one for one in (self.visits, *self.further) if not one.seat.resting]

    @property
    def verified_rate(self) -> float | None:
        """The rollouts per second that these verify together while there is work; None: not measured yet."""
        known = [one.rate.value for one in self.working if one.rate.value is not None]
        return sum(known) if known else None

    async def run(self) -> None:
        """Score and evaluate, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_first())
            for visits in self.further:
                group.create_task(visits.run(self.arrived))

    async def _run_first(self) -> None:
        while True:
            self.arrived.clear()
            try:
                worked = await self.round()
            except ChildDied:
                continue
            except ChildError as error:
                await self.visits.rest(error)
                continue
            if not worked:
                await self.visits.wait(self.arrived)

    async def round(self) -> bool:
        """Score the waiting groups, or run an evaluation; return whether there was work. Raises `ChildDied`."""
        if self.group_service.progress is None:
            return False
        waiting = self.visits.has_waiting()
        review = None if self.reviewing is None or (self._checked and waiting) else self.reviewing.due()
        self._checked = review is not None
        if self.reviewing is not None and review is not None:
            self.visits.dispatch.wake_idle()
            await self.reviewing.make(review, self.visits.hold)
            return True
        may = not self._evaluating and self.clock() >= self._evaluate_from
        version = self._evaluation_due() if may else None
        if version is not None and (self._has_waited() or not (waiting or self._is_waited_for())):
            self.visits.dispatch.wake_idle()
            await self._evaluate(version)
            return True
        self._wanted_since = (self._wanted_since or self.clock()) if version is not None else None
        since = self.clock() if self._evaluating else self._wanted_since
        await self.visits.judge_waiting(None if since is None else since + self._patience())
        if version is not None and not waiting:
            self._look_soon()
            return False
        return waiting or await self._make_answer()

    def _look_soon(self) -> None:
        """Have another round after `LOOK_SECONDS`: one, however many rounds asked for it."""
        if self._look is not None:
            self._look.cancel()
        self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.arrived.set)

    async def _meanwhile(self, work: Awaitable[T]) -> T:
        """Await work of an environment; meanwhile the scorer has its other rounds (rule 5)."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: self.arrived.set())
        self._evaluating = True
        try:
            await asyncio.wait([task], timeout=AT_HAND)
            while not task.done():
                self.arrived.clear()
                with contextlib.suppress(ChildDied):
                    if not await self.round() and not task.done():
                        await self.visits.wait(self.arrived)
            return task.result()
        finally:
            self._evaluating = False
            task.cancel()

    async def _make_answer(self) -> bool:
        """Make an answer of a canary (rule 4); return whether one was due."""
        at, began = self.group_service.progress, self.clock()
        wanted = self.group_service.wanted_answer() if began >= self._answers_from() else None
        if at is None or wanted is None:
            return False
        try:
            if not await self.visits.hold(at.version, at.root):
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
        """Return from when on the next answer may be made (rule 4), seconds."""
        share = FOR_ANSWERS if self._has_batch() else WHILE_SHORT
        return self._answer_ended + self._answer_took * (1 / share - 1)

    def _has_batch(self) -> bool:
        return self.group_service.count_buffered() >= self.group_service.terms.batch_groups

    def _patience(self) -> float:
        """Return for how long groups that wait go before the next slice (rule 1), seconds."""
        if self._has_batch():
            return EVALUATION_WAIT_SECONDS
        return max(EVALUATION_WAIT_SECONDS, self._slice_took * (1 / EVALUATIONS_WHILE_SHORT - 1))

    def _verdict_seconds(self) -> float | None:
        """Return how long the scorer takes for one group's verdict; None: not measured yet."""
        each = self.visits.rate.each
        return None if each is None else each * self.group_service.terms.group_size

    def _job_of(self, wanted: WantedAnswer) -> Job:
        prompt, terms = wanted.prompt, self.group_service.terms
        return Job(
            prompt=prompt.tokens,
            seeds=wanted.seeds,
            limit=terms.limit,
            temperature=terms.temperature,
            eos=self.visits.verifier.ends[0],
            other_ends=self.visits.verifier.ends[1:],
            task=prompt.task,
            task_version=prompt.task_version,
            split="train",
            index=prompt.index,
            single_turn=self.group_service.is_single(prompt.task, prompt.task_version),
        )

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

    def is_settled(self) -> bool:
        """Tell whether the last step is done and its version evaluated."""
        at = self.group_service.progress
        return at is not None and at.finished and self._evaluation_due() is None

    def _has_waited(self) -> bool:
        return self._wanted_since is not None and self.clock() - self._wanted_since >= self._patience()

    async def _evaluate(self, version: int) -> None:
        latest = self.publisher.latest
        assert latest is not None

        async def hold() -> bool:
            return await self.visits.hold(latest.version, latest.root)

        judging = False
        begun: float | None = None

        async def between() -> None:
            nonlocal judging, begun
            if begun is not None:
                self._slice_took = self.clock() - begun
            judging = True
            await self._judge_awaited(self.clock() + self._patience())
            judging, begun = False, self.clock()

        self._wanted_since = None
        if self.guarding is not None:
            self.guarding.examining(latest)
        try:
            success = await evaluate(
                self.evaluation_sets, self.scorer, hold=hold, version=version, clock=self.clock, between=between,
                meanwhile=self._meanwhile, verdict_seconds=self._verdict_seconds,
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
            if judging:
                raise
            self._failed_evaluations[version] += 1
            log.error("scorer failed at an evaluation", version=version, reason=str(error))
            await self.scorer.renew()
            return
        self.history.add(success)
        if self.guarding is not None:
            self.guarding.on_evaluation(success, latest)
            self._stop_when_stale(self.guarding.exams_without_best)
        log.info("evaluated", version=version, sampled=round(success.sampled, 3), greedy=round(success.greedy, 3))

    async def _judge_awaited(self, until: float) -> None:
        """Verify the groups that wait, and those for which the learner waits. `until`: seconds, at the latest."""
        await self.visits.judge_waiting(until)
        while self._is_waited_for() and self.clock() < until:
            self.arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.visits.wait(self.arrived)
            await self.visits.judge_waiting(until)

    def _is_waited_for(self) -> bool:
        """Tell whether the learner waits for groups that are on their way to it, and this scorer alone verifies them
        (rule 1)."""
        at, leases = self.group_service.progress, self.group_service.leases
        if at is None or at.finished or not leases.window.learner_waits or len(self.working) > 1:
            return False
        return leases.load(at, self._now()).on_their_way(0) > 0

    def _stop_when_stale(self, exams: int) -> None:
        """End the run where `exams` evaluations in a row were no better (run.stop_after)."""
        at = self.group_service.progress
        if self.stop_after is not None and exams >= self.stop_after and at is not None and not at.finished:
            try:
                log.warning("held-out results rise no more: the run ends", evaluations=exams, last_step=self.end_run())
            except LocalFault as fault:
                log.error("run.steps could not be written: after a restart the run goes on", reason=str(fault))

    def _put_off(self, away: EnvironmentAway) -> None:
        """Evaluate nothing for a while: an environment cannot be opened (rule 5)."""
        log.warning("evaluation put off", reason=str(away), again_seconds=SCORER_AWAY_SECONDS)
        self._evaluate_from = self.clock() + SCORER_AWAY_SECONDS
        asyncio.get_running_loop().call_later(1.01 * SCORER_AWAY_SECONDS, self.arrived.set)

    def _now(self) -> int:
        return int(self.clock() * 1000)
