"""Decide when a run must stop because its policy dies. Pure: held-out results and metrics in, warnings and alarms out.

Rules
1. Nine ways to die are seen in the metrics of steps (guard_rules.py). The guard warns at the first step at which a
   rule holds, and raises an alarm when its count is its number of steps. A step at which the rule holds adds 1 to the
   count, one at which it does not takes `TAKEN_BACK` from it, and one of which it cannot be told changes nothing: a
   policy that dies does not look dead at each step.
2. Held-out: of a task's result, (value - floor) / (best - floor) is what is left of the best (direction and floor:
   tasks/measure.py). Where less than half is left in `exams` exams in a row, the policy has collapsed. This is off
   until the best lies `RISE_ERRORS` standard errors of the difference above the first exam, except for a result that
   lies `FALLEN_ERRORS` of them below the best: a policy may break before it has learned much. Each task counts alone.
3. Floor: no exam of the whole run has risen above the floor, though training solves `LEAST_GAP` more of its prompts, or
   has solved nothing in `REMEMBERED_STEPS` steps and its reward has not risen; in twice as many exams in a row.
4. Hacking: the result of all tasks lies `FALLEN_ERRORS` standard errors below its best, and the reward of training
   `RISE_ERRORS` above what it was then, in `exams` exams in a row.
5. A task of which no held-out prompt could be posed has no result: the exam counts for the others alone.
6. Counts and what is remembered of steps begin anew with each era, and where the operator resumes after an alarm. First
   and best result stay, so that a policy which is rolled back is still guarded. They begin anew where that alarm was of
   an exam, or the operator goes back to another version than the best.
7. The kinds `warn_only` raise no alarm. A step or an exam that is repeated after a restart counts once.
8. A run that leaves out groups without signal makes no step of them: they count as steps without signal (`on_flat`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.training.guard_rules import (
    FEW_SOLVED,
    REMEMBERED_STEPS,
    SIGNAL_STEPS,
    STEP_RULES,
    Reading,
    Steps,
    mean,
    take_norm,
)
from echo2.tasks.measure import Measure

EXAM_RULES: Final[Mapping[str, tuple[str, str]]] = {
    "hacking": (
        "reward rises while held-out results fall",
        "read answers of the newest version (`echo2-coord task try`): the score is probably paid without being "
        "solved, or training's prompts are learned by heart; correct the score, or take more prompts",
    ),
    "held-out": ("held-out results have collapsed", "lower `learner.learning_rate`"),
    "floor": (
        "held-out results stay at their floor",
        "try held-out prompts (`echo2-coord task try --split heldout`): they may be of another kind than those of "
        "training, or no answer counts as a success",
    ),
}
"""Kind -> title and remedy of rules 2 to 4."""
KINDS: Final = (*EXAM_RULES, *STEP_RULES)

RISE_ERRORS: Final = 2.0
FALLEN_ERRORS: Final = 4.0
FLOOR_ERRORS: Final = 2.0
LEAST_LEFT: Final = 0.5
"""Share of the best that is to be left (rule 2)."""
LEAST_GAP: Final = 0.05
"""Share of answers beyond errors."""
REWARD_STEPS: Final = 8
"""Steps whose mean reward rules 3 and 4 compare."""
TAKEN_BACK: Final = 2
MOST_ROLLBACKS: Final = 3
"""Rollbacks to one version that are made without the operator."""


class GuardLimits(NamedTuple):
    """The limits of rules 2 to 4, and rule 7."""

    exams: int = 3
    warn_only: Collection[str] = ()


class TaskResult(msgspec.Struct, frozen=True):
    """A task's held-out result. `value`: share of answers solved. `error`: its standard error. `prompts`: weight among
    the tasks."""

    version: int
    value: float
    error: float
    prompts: int


class Exam(msgspec.Struct, frozen=True, kw_only=True):
    """The held-out results of a published version, by task. `root`: its content root."""

    era: int
    version: int
    root: bytes
    results: dict[str, TaskResult]


class Alarm(NamedTuple):
    """A rule that struck. `why`: a sentence."""

    kind: str
    why: str


class Level(NamedTuple):
    """The mean reward of the last steps, with its standard error."""

    reward: float
    error: float


class GuardState(msgspec.Struct, kw_only=True):
    """All that is remembered. `era`, `step`, `exam`: the last that counted (`exam`: era and version). `first`, `best`:
    per task. `best_exam`, `best_score`: best exam and best score of the best version of the run. `top`: best result of
    all tasks together, and the reward then. `low`: exams in a row, per task. `counts`: count of rule 1,
    per kind. `now`: what it last read. `steps`: see `Steps`. `stale`: exams in a row without a new best one.
    `rollbacks`: those that the operator did not order, by root in hex."""

    era: int = 0
    step: int = 0
    exam: tuple[int, int] = (0, -1)
    first: dict[str, TaskResult] = {}
    best: dict[str, TaskResult] = {}
    best_exam: Exam | None = None
    best_score: float = 0.0
    top: tuple[TaskResult, Level | None] | None = None
    low: dict[str, int] = {}
    counts: dict[str, int] = {}
    now: dict[str, str] = {}
    steps: Steps = msgspec.field(default_factory=Steps)
    stale: int = 0
    rollbacks: dict[str, int] = {}


def share_error(value: float, answers: int) -> float:
    """Return the standard error of a share of so many independent answers; above 0 also at shares of 0 and 1 (Agresti
    and Coull 1998, with one success and one failure added)."""
    middle = (value * answers + 1) / (answers + 2)
    return math.sqrt(middle * (1 - middle) / (answers + 2))


class Guard:
    """The rules over one run's exams and steps. `measures`: measures by task; a task that is missing has the
    default."""

    def __init__(self, limits: GuardLimits, measures: Mapping[str, Measure], state: GuardState | None = None) -> None:
        self.limits = limits
        self.state = state or GuardState()
        self._measures = measures

    def begin(self, era: int) -> None:
        """Begin an era, unless it has begun (rule 6)."""
        if era > self.state.era:
            self.state.era, self.state.step = era, 0
            self.begin_anew()

    def begin_anew(self, *, results: bool = False) -> None:
        """Begin counts and steps anew (rule 6). `results`: first and best result too."""
        state = self.state
        state.low, state.counts, state.now, state.steps, state.stale = {}, {}, {}, Steps(), 0
        if results:
            state.first, state.best, state.top = {}, {}, None

    def warnings(self) -> list[str]:
        """Return the kinds whose rules hold."""
        return [kind for kind in KINDS if self.state.counts.get(kind, 0)]

    def pause_after(self, kind: str) -> int | None:
        """Return the count of steps, or of exams, at which a rule raises an alarm; None: it never does."""
        if kind in self.limits.warn_only:
            return None
        return STEP_RULES[kind].pause if kind in STEP_RULES else self.limits.exams * (1 + (kind == "floor"))

    def on_exam(self, exam: Exam) -> Alarm | None:
        """Take the result of an exam; return the alarm where one of rules 2 to 4 strikes."""
        state = self.state
        posed = {task: result for task, result in exam.results.items() if result.prompts}
        exam = msgspec.structs.replace(exam, results=posed)
        if (exam.era, exam.version) <= state.exam:
            return None
        state.exam = (exam.era, exam.version)
        self._rank(exam)
        if exam.era < state.era or not posed:
            return None  # of a version that was rolled back meanwhile, or of no prompt
        self.begin(exam.era)
        low = {task: self._is_low(task, result) for task, result in posed.items()}
        state.low |= {task: state.low.get(task, 0) + 1 if is_low else 0 for task, is_low in low.items()}
        state.counts["held-out"] = max(state.low.values(), default=0)
        together = self._together(posed)
        readings = {"hacking": self._hacking(together), "floor": self._floor(together)}
        for kind, reading in readings.items():
            self._note(kind, reading)
        state.now["held-out"] = self._describe(posed)
        return self._alarm_of(EXAM_RULES)

    def remaining_share(self, task: str, result: TaskResult) -> float | None:
        """Return what is left of a task's best, 1 at the best; None where rule 2 is off."""
        first, best = self.state.first.get(task), self.state.best.get(task)
        if first is None or best is None:
            return None
        measure = self._measure(task)
        risen, fallen = (_sign(measure) * (best.value - other.value) for other in (first, result))
        has_risen = risen > 0 and risen >= RISE_ERRORS * math.hypot(first.error, best.error)
        has_fallen = fallen > 0 and fallen >= FALLEN_ERRORS * math.hypot(result.error, best.error)
        if best.value == measure.floor or not (has_risen or has_fallen):
            return None
        return (result.value - measure.floor) / (best.value - measure.floor)

    def on_step(self, era: int, step: int, metrics: Mapping[str, float]) -> Alarm | None:
        """Take the metrics of a step (coordinator/learner/step.py); return the alarm where a rule of steps strikes."""
        state = self.state
        self.begin(era)
        if era < state.era or step <= state.step:
            return None
        state.step = step
        state.steps.take({**metrics, "success": self._share_solved(metrics.get("success", 0.0))})
        for kind, rule in STEP_RULES.items():
            self._note(kind, take_norm(state.steps, metrics) if rule.read is None else rule.read(state.steps))
        return self._alarm_of(STEP_RULES)

    def on_flat(self, batches: int, solved: float) -> Alarm | None:
        """Take the number of batches that groups without signal would fill, which are left out (rule 8); return the
        alarm where they are too many. `solved`: share of the last answers."""
        solved = self._share_solved(solved)
        kind = "too-hard" if solved <= FEW_SOLVED else "too-easy" if solved >= 1 - FEW_SOLVED else "no-signal"
        now = f"{batches} batches of groups without rewards that differ, {100 * solved:.1f} % of answers solved"
        if batches >= SIGNAL_STEPS:
            self.state.counts[kind], self.state.now[kind] = batches - SIGNAL_STEPS + 1, now
        return self._alarm_of([kind])

    def rolled_back(self, root: bytes, era: int, *, automatic: bool) -> None:
        """Note that the version with `root` was published again, in `era`."""
        best = self.state.best_exam
        self.begin(era)
        self.begin_anew(results=best is None or best.root != root)
        if automatic:
            self.state.rollbacks[root.hex()] = self.state.rollbacks.get(root.hex(), 0) + 1

    def may_roll_back(self, kind: str, root: bytes) -> bool:
        """Tell whether an alarm of `kind` may go back to the version with `root` without the operator. An earlier
        policy would die of a wrong task or score as well, but not of what it had learned and lost."""
        forgotten = kind in ("too-hard", "cut") and self.state.steps.solved > 2 * FEW_SOLVED
        breaks = kind == "held-out" or forgotten or (kind in STEP_RULES and STEP_RULES[kind].breaks)
        return breaks and self.state.rollbacks.get(root.hex(), 0) < MOST_ROLLBACKS

    def _note(self, kind: str, reading: Reading) -> None:
        if reading.holds is not None:
            self.state.counts[kind] = max(0, self.state.counts.get(kind, 0) + (1 if reading.holds else -TAKEN_BACK))
        if reading.now:
            self.state.now[kind] = reading.now

    def _alarm_of(self, kinds: Collection[str]) -> Alarm | None:
        """Return the first alarm among these kinds."""
        for kind in kinds:
            after, count = self.pause_after(kind), self.state.counts.get(kind, 0)
            if after is not None and count >= after:
                what = "evaluations" if kind in EXAM_RULES else "steps"
                return Alarm(kind, f"{title_of(kind)} ({self.state.now[kind]}), for {count} {what}")
        return None

    def _is_low(self, task: str, result: TaskResult) -> bool:
        state = self.state
        state.first.setdefault(task, result)
        state.best.setdefault(task, result)
        if _sign(self._measure(task)) * (result.value - state.best[task].value) > 0:
            state.best[task] = result
        left = self.remaining_share(task, result)
        return left is not None and left < LEAST_LEFT

    def _rank(self, exam: Exam) -> None:
        """Keep the best exam of the run: by the mean over the tasks, weighted by their prompts; the first of equals."""
        prompts = sum(result.prompts for result in exam.results.values())
        if not prompts:
            return
        score = sum(_sign(self._measure(task)) * result.value * result.prompts for task, result in exam.results.items())
        if self.state.best_exam is None or score / prompts > self.state.best_score:
            self.state.best_exam, self.state.best_score, self.state.stale = exam, score / prompts, 0
        else:
            self.state.stale += 1

    def _together(self, results: Mapping[str, TaskResult]) -> TaskResult:
        """Return the result of all tasks above their floors, the higher the better, weighted by their prompts."""
        prompts = sum(one.prompts for one in results.values())
        value = sum(one.prompts * self._above(task, one.value) for task, one in results.items()) / prompts
        error = math.sqrt(sum((one.prompts * one.error) ** 2 for one in results.values())) / prompts
        return TaskResult(next(iter(results.values())).version, value, error, prompts)

    def _above(self, task: str, value: float) -> float:
        measure = self._measure(task)
        return _sign(measure) * (value - measure.floor)

    def _reward(self) -> Level | None:
        """Return the level of the reward; None while there are too few steps."""
        rewards = [one.reward for one in self.state.steps.last[-REWARD_STEPS:]]
        return _level(rewards) if len(rewards) == REWARD_STEPS else None

    def _hacking(self, together: TaskResult) -> Reading:
        top, now = self.state.top, self._reward()
        if top is None or together.value > top[0].value:
            self.state.top = (together, now)
            return Reading(False)
        best, then = top
        if now is None or then is None:
            return Reading(None)
        fallen = best.value - together.value >= FALLEN_ERRORS * math.hypot(best.error, together.error)
        risen = now.reward - then.reward > RISE_ERRORS * math.hypot(now.error, then.error)
        said = (
            f"reward {then.reward:.3g} to {now.reward:.3g}, held-out {100 * (together.value - best.value):+.1f} points"
        )
        return Reading(fallen and risen, f"{said} since version {best.version}")

    def _floor(self, together: TaskResult) -> Reading:
        state, top = self.state, self.state.top
        best = together if top is None else top[0]
        at_floor = best.value <= FLOOR_ERRORS * best.error
        now, before = self._reward(), [one.reward for one in state.steps.first]
        if not at_floor:
            return Reading(False, f"{100 * together.value:.1f} points above it")
        if now is None or len(before) < REWARD_STEPS:
            return Reading(None)
        steps, start = state.steps.last, _level(before)
        recent = mean([one.solved for one in steps[-REWARD_STEPS:]])
        unsolved = (
            len(steps) == REMEMBERED_STEPS and any(one.groups for one in steps) and not any(one.solved for one in steps)
        )
        flat = unsolved and now.reward - start.reward <= RISE_ERRORS * math.hypot(now.error, start.error)
        return Reading(
            flat or self._training_gain(recent) - best.value > LEAST_GAP + FLOOR_ERRORS * best.error,
            f"{100 * together.value:.1f} points above it, {100 * recent:.1f} % of training's answers solved",
        )

    def _training_gain(self, solved: float) -> float:
        """Return by how much training is better than the floor; with several tasks by the mean of their floors."""
        tasks = list(self.state.first)
        return sum(self._above(task, self._share_solved(solved)) for task in tasks) / max(1, len(tasks))

    def _share_solved(self, share: float) -> float:
        """Return the share of answers that are as they should be, of those with `success`, and the reverse: the rest of
        them where `success` marks what no policy should do."""
        down = bool(self._measures) and all(one.direction == "down" for one in self._measures.values())
        return 1 - share if down else share

    def _describe(self, results: Mapping[str, TaskResult]) -> str:
        def one(task: str) -> str:
            now, best = results[task], self.state.best[task]
            after = f"after {best.value:.3f} at version {best.version}"
            return f"{task} solves {now.value:.3f} at version {now.version}, {after}"

        low = [task for task in results if self.state.low.get(task)]
        return "; ".join(one(task) for task in low or results)

    def _measure(self, task: str) -> Measure:
        return self._measures.get(task, Measure())


def title_of(kind: str) -> str:
    """Return the way to die, in words."""
    return STEP_RULES[kind].title if kind in STEP_RULES else EXAM_RULES[kind][0]


def remedy_of(kind: str) -> str:
    """Return what the operator may do about it."""
    return STEP_RULES[kind].remedy if kind in STEP_RULES else EXAM_RULES[kind][1]


def _level(rewards: Sequence[float]) -> Level:
    average = mean(rewards)
    variance = sum((reward - average) ** 2 for reward in rewards) / max(1, len(rewards) - 1)
    return Level(average, math.sqrt(variance / max(1, len(rewards))))


def _sign(measure: Measure) -> int:
    return 1 if measure.direction == "up" else -1
