"""Guard a run: feed the guard (run_guard.py), pause the run at its alarms, and order versions to be published again.

    exams, steps ─> guard ─ alarm ─> pause ─┬─ `resume`
                                            └─ order ─> training loop ─> learner ─> newer version in a new era

Rules
1. Exams are the evaluations by the operator's scorer.
2. Guard, order and past rollbacks are one fact of run.sqlite (`guard`). An order is durable before it is carried out,
   and a restart carries it out. It is told to the learner until a newer version is published: a learner whose newest
   checkpoint is damaged would else go on from one of before the rollback. It obeys no order twice.
3. The best version, versions that are being examined and an ordered one stay readable in the store. A snapshot is
   written of an ordered one, when the learner is told.
4. A rollback ends a pause of the guard, and no other. Its order is dropped where the learner cannot obey it.
5. With `auto_rollback` an alarm orders the best version again with half the rate, at most `MOST_ROLLBACKS` times to one
   version. After that, or where there is no best version, or where an earlier policy would die of it too, the run stays
   paused.
6. The log names each warning once, when its rule begins to hold; the page has a row for each rule.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from echo2.coordinator.learner.messages import Republish
from echo2.coordinator.metrics.setting_changes import read_changes
from echo2.coordinator.metrics.trouble_views import GuardMood, GuardRow, GuardView, RollbackView
from echo2.coordinator.metrics.views import Evaluation
from echo2.coordinator.publishing.published import Published
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.settings.config import GuardSection
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.pauses import Pause
from echo2.coordinator.training.run_guard import (
    EXAM_RULES,
    KINDS,
    MOST_ROLLBACKS,
    Alarm,
    Exam,
    Guard,
    GuardLimits,
    GuardState,
    TaskResult,
    remedy_of,
    share_error,
    title_of,
)
from echo2.coordinator.training.run_watch import Watch
from echo2.coordinator.verdicts import task_results
from echo2.runtime.errors import LocalFault
from echo2.tasks.measure import Measure

FACT: Final = "guard"
REMEMBERED_ROLLBACKS: Final = 20
"""Rollbacks that are remembered."""
RECENT_STEPS: Final = 100
"""Steps for which a changed setting is named as a suspect."""
ROLLBACK_RATE_FACTOR: Final = 0.5

log = structlog.get_logger("coordinator")


class RollbackOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to publish a version again. `id`: milliseconds of its time. `factor`: factor of the learning rate."""

    id: int
    era: int
    version: int
    root: bytes
    factor: float
    automatic: bool
    why: str


class GuardRecord(msgspec.Struct, kw_only=True):
    """The fact. `obeyed`: the last order that was carried out, as version `obeyed_as`. `left`: of the last exam, per
    task. `rate`: factor of the learning rate, as the learner told it."""

    state: GuardState
    order: RollbackOrder | None = None
    obeyed: RollbackOrder | None = None
    obeyed_as: int = 0
    done: list[RollbackView] = []
    left: dict[str, float] = {}
    rate: float = 1.0


class Guarding:
    """The guard of one run, over its database and its store of versions."""

    def __init__(
        self,
        group_service: GroupService,
        watch: Watch,
        publisher: Publisher,
        section: GuardSection,
        measures: Mapping[str, Measure],
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        """`measures`: measures by task. `clock`: seconds since the Unix epoch. `changed`: called when a version is
        ordered."""
        self._group_service, self._watch, self._publisher = group_service, watch, publisher
        self._clock, self._changed = clock, changed
        stored = group_service.database.fact(FACT)
        self._record = msgspec.json.decode(stored, type=GuardRecord) if stored else GuardRecord(state=GuardState())
        self._guard = Guard(GuardLimits(), measures, self._record.state)
        self.take(section)
        self._warned = set(self._guard.warnings())
        self._examining: tuple[int, int] | None = None

    def take(self, section: GuardSection) -> None:
        """Take these settings, from the next step and evaluation on."""
        self._auto = section.auto_rollback
        self._guard.limits = GuardLimits(section.exams, section.warn_only)

    @property
    def exams_without_best(self) -> int:
        """The evaluations in a row that were no better than the best, since the policy was last rolled back."""
        return self._guard.state.stale

    def examining(self, version: Published | None) -> None:
        """Note the version that the scorer examines; None: none any more."""
        self._examining = None if version is None else (version.era, version.version)

    def on_evaluation(self, evaluation: Evaluation, version: Published) -> None:
        """Take an evaluation by the operator's scorer."""
        results = {
            one.task: TaskResult(evaluation.version, one.sampled, share_error(one.sampled, one.prompts), one.prompts)
            for one in evaluation.tasks
        }
        self._examine_version(Exam(era=version.era, version=version.version, root=version.root, results=results))

    def on_step(self, era: int, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step of the learner."""
        self._take(self._guard.on_step(era, step, metrics))

    def on_wait(self) -> None:
        """Take the groups that are left out for want of signal, while the learner waits for others."""
        at, service = self._group_service.progress, self._group_service
        batches = 0 if at is None else service.buffer.flat(at.step, at.era) // service.terms.batch_groups
        if batches and self._watch.pause is None:
            recent = task_results.recent(service.database).values()
            solved = sum(one.success for one in recent) / max(1, sum(one.rollouts for one in recent))
            self._take(self._guard.on_flat(batches, solved))

    def kept_versions(self) -> set[tuple[int, int]]:
        """Return (era, version) of those that stay (rule 3)."""
        best, order = self._guard.state.best_exam, self._record.order
        kept = {(one.era, one.version) for one in (best, order) if one is not None}
        if self._examining is not None:
            kept.add(self._examining)
        return kept

    def order(self, version: int | None = None, factor: float = 1.0) -> str:
        """Order a version to be published again for the operator; return a sentence. `version`: None: the best.
        `factor`: factor of the learning rate. Raises `LocalFault`."""
        at, named = self._group_service.progress, self._find_version(version)
        if at is None or at.finished:
            raise LocalFault("the run is finished" if at else "the learner has not started yet: try again in a minute")
        before = self._record.order
        self._put(named, factor, "ordered by the operator", automatic=False)
        instead = "" if before is None else f" in place of version {before.version}, which was ordered before"
        return (
            f"version {named.version} will be published again under a new number{instead}, once the step that has "
            "begun is finished; groups of the versions until then are paid and not learned from"
        )

    @property
    def ordered(self) -> bool:
        """Whether a version is to be published again."""
        return self._record.order is not None

    async def republish(self) -> Republish | None:
        """Return the order for the learner (rule 2); None if there is none. One whose version is gone is dropped."""
        order, latest = self._record.order, self._publisher.latest
        if order is None and latest is not None and latest.version == self._record.obeyed_as:
            order = self._record.obeyed
        if order is None:
            return None
        path = await self._publisher.whole(order.era, order.version, order.root)
        if path is None:
            self.drop_order("it is gone from the store")
            return None
        return Republish(
            id=order.id, version=order.version, root=order.root, snapshot=str(path), factor=order.factor, why=order.why
        )

    def complete_order(self, published: Published, rate: float) -> None:
        """Note that the learner is open at `published`, the newest version, with the rate's factor `rate`: an order
        has been carried out (rule 4)."""
        order, self._record.order = self._record.order, None
        self._record.rate = rate
        if order is not None:
            self._record.obeyed, self._record.obeyed_as = order, published.version
            self._guard.rolled_back(order.root, published.era, automatic=order.automatic)
            row = RollbackView(
                at=self._now(), era=order.era, version=order.version, new_era=published.era,
                new_version=published.version, why=order.why, automatic=order.automatic, rate=rate,
            )  # fmt: skip
            self._record.done = [*self._record.done[-REMEMBERED_ROLLBACKS + 1 :], row]
            self._record.left = {}
            log.warning("version published again", version=order.version, new_version=published.version, rate=rate)
        self._guard.begin(published.era)
        self._save()
        if order is not None:
            self._watch.end_alarm(f"version {order.version} is published again as version {published.version}")

    def drop_order(self, reason: str) -> None:
        """Drop the order: it cannot be carried out (rule 4)."""
        order, self._record.order, self._record.obeyed = self._record.order, None, None
        if order is not None:
            log.error("version not published again", version=order.version, reason=reason)
            self._save()

    def view(self) -> GuardView:
        """Return the guard for the page."""
        best, order = self._guard.state.best_exam, self._record.order
        return GuardView(
            best_era=None if best is None else best.era,
            best_version=None if best is None else best.version,
            left=dict(self._record.left),
            rollbacks=list(self._record.done),
            rate=self._record.rate,
            ordered=None if order is None else order.version,
            rows=[self._row(kind) for kind in KINDS],
        )

    def _row(self, kind: str) -> GuardRow:
        state, pause = self._guard.state, self._watch.pause
        holds = state.counts.get(kind, 0)
        mood: GuardMood = "warning" if holds else "ok" if kind in state.now else "unknown"
        if pause is not None and pause.kind == kind:
            mood = "paused"
        return GuardRow(
            kind=kind, title=title_of(kind), now=state.now.get(kind, ""), mood=mood, holds=holds,
            pause_after=self._guard.pause_after(kind), remedy=remedy_of(kind),
        )  # fmt: skip

    def _examine_version(self, exam: Exam) -> None:
        alarm = self._guard.on_exam(exam)
        left = {task: self._guard.remaining_share(task, result) for task, result in exam.results.items()}
        self._record.left = {task: share for task, share in left.items() if share is not None}
        self._take(alarm)

    def _take(self, alarm: Alarm | None) -> None:
        """Save the guard, and pause the run at an alarm."""
        at, pause, warned = self._group_service.progress, self._watch.pause, set(self._guard.warnings())
        for kind in sorted(warned - self._warned):
            log.warning("the guard warns", kind=kind, what=title_of(kind), now=self._guard.state.now.get(kind, ""))
        self._save()
        if alarm is None or at is None or at.finished or self.ordered:
            return
        if pause is not None and pause.until is None:
            return  # paused until `resume` already, by the guard or the operator
        best = self._guard.state.best_exam
        remedy = self._recent_change(at.step + at.unchanged) + remedy_of(alarm.kind)
        if best is None or best.root not in self._publisher.stored.roots():
            goes_on = "`echo2-coord resume` goes on with the policy as it is; no better version is kept"
            self._watch.alarm(alarm, f"{remedy}; {goes_on}")
            return
        choice = (
            f"{remedy}; `echo2-coord policy rollback` publishes version {best.version} again, the best, and "
            "`echo2-coord resume` goes on with the policy as it is"
        )
        if self._auto and self._guard.may_roll_back(alarm.kind, best.root):
            self._watch.alarm(
                alarm, f"version {best.version}, the best, is about to be published again at half the rate"
            )
            self._put(best, ROLLBACK_RATE_FACTOR, alarm.why, automatic=True)
        elif self._auto and self._guard.may_roll_back(alarm.kind, b""):
            spent = f"version {best.version} was published again {MOST_ROLLBACKS} times without the operator"
            self._watch.alarm(alarm, f"{spent}; {choice}")
        else:
            self._watch.alarm(alarm, choice)

    def _recent_change(self, step: int) -> str:
        """Return the beginning of a remedy that names the last change of the learner's settings, if it is of the last
        `RECENT_STEPS` steps: the first suspect, whatever the sign."""
        changes = read_changes(self._group_service.database, public=True)
        for one in changes:
            if one.key.startswith("learner.") and one.step is not None and one.step > step - RECENT_STEPS:
                return f"a setting changed shortly before: {one.sentence()}; set it back if that was not meant. Else "
        return ""

    def _put(self, version: Published | Exam, factor: float, why: str, *, automatic: bool) -> None:
        self._record.order = RollbackOrder(
            id=self._now(), era=version.era, version=version.version, root=version.root, factor=factor,
            automatic=automatic, why=why,
        )  # fmt: skip
        log.warning("version ordered again", era=version.era, version=version.version, why=why, automatic=automatic)
        self._save()
        self._changed()

    def _find_version(self, number: int | None) -> Published | Exam:
        """Return the kept version that the operator names. Raises `LocalFault`."""
        best, stored = self._guard.state.best_exam, self._publisher.stored.roots()
        kept = [one for one in self._publisher.versions if one.root in stored]
        if number is None:
            if best is None or best.root not in stored:
                raise LocalFault(f"no version was evaluated yet: name one of {_name_versions(kept)}")
            return best
        if best is not None and best.version == number and best.root in stored:
            return best
        named = next((one for one in reversed(kept) if one.version == number), None)
        if named is None:
            raise LocalFault(f"version {number} is not kept; kept are {_name_versions(kept)}")
        return named

    def begin_anew(self, pause: Pause) -> None:
        """Take the policy as it is, where the operator goes on after an alarm."""
        if pause.is_alarm:
            self._guard.begin_anew(results=pause.kind in EXAM_RULES)
            self._save()

    def _save(self) -> None:
        self._warned = set(self._guard.warnings())
        self._group_service.database.set_fact(FACT, msgspec.json.encode(self._record))

    def _now(self) -> int:
        return int(self._clock() * 1000)


def _name_versions(versions: Sequence[Published]) -> str:
    """Name versions, in runs of consecutive numbers."""
    runs = list[list[int]]()
    for number in sorted({one.version for one in versions}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs) or "none"
