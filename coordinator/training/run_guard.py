"""Decide when a run must stop because its policy breaks. Pure: held-out results and metrics in, alarms out.

Rules
1. Held-out: of a task's result, (value - floor) / (best - floor) is what is left of the best (direction and floor:
   tasks/measure.py). Where less than `share` is left in `exams` exams in a row, the policy has collapsed. This is off
   until the best lies `RISE_ERRORS` standard errors of the difference above the first exam, except for a result that
   lies `FALLEN_ERRORS` of them below the best: a policy may break before it has learned much. Each task counts alone.
2. Entropy: the policy's entropy lies below `entropy` nats for `LOW_ENTROPY_STEPS` steps in a row. It is of groups with
   signal, so a policy that has learned its task does not fall under it; a step without signal counts neither way.
3. Updates: `skipped` updates in a row were skipped, as their gradients were not finite.
4. Gradient: for `FAR_GRADIENT_STEPS` steps in a row the norm is above `gradient` times the greatest of its history, the
   last `NORM_HISTORY` norms that were not, of which there are at least `LEAST_NORMS`. A step without a gradient counts
   neither way.
5. Counts and history begin anew with each era and each resume. First and best result stay, so that a policy which is
   rolled back is still guarded. They begin anew where the operator resumes after rule 1, or goes back to another
   version than the best.
6. A task of which no held-out prompt could be posed has no result: the exam counts for the others alone.
7. A limit of 0 turns its rule off. A step or an exam that is repeated after a restart counts once.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from echo2.tasks.measure import Measure

AlarmKind = Literal["held-out", "entropy", "updates", "gradient"]
KINDS: Final = ("held-out", "entropy", "updates", "gradient")

RISE_ERRORS: Final = 2.0
FALLEN_ERRORS: Final = 4.0
LOW_ENTROPY_STEPS: Final = 20
FAR_GRADIENT_STEPS: Final = 3
NORM_HISTORY: Final = 64
LEAST_NORMS: Final = 16
MOST_ROLLBACKS: Final = 3
"""Rollbacks to one version that are made without the operator."""


class GuardLimits(NamedTuple):
    """The limits of rules 1 to 4; 0 turns a rule off."""

    share: float = 0.5
    exams: int = 3
    entropy: float = 0.001
    skipped: int = 20
    gradient: float = 10.0


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

    kind: AlarmKind
    why: str


class GuardState(msgspec.Struct, kw_only=True):
    """All that is remembered. `era`, `step`, `exam`: the last that counted (`exam`: era and version). `first`, `best`:
    per task. `best_exam`, `best_score`: best exam and best score of the best version of the run. `low`: exams in a row,
    per task. `below`, `skipped`, `far`: the counts of rules 2 to 4. `norms`: the history of rule 4. `rollbacks`: those
    that the operator did not order, by root in hex."""

    era: int = 0
    step: int = 0
    exam: tuple[int, int] = (0, -1)
    first: dict[str, TaskResult] = {}
    best: dict[str, TaskResult] = {}
    best_exam: Exam | None = None
    best_score: float = 0.0
    low: dict[str, int] = {}
    below: int = 0
    skipped: int = 0
    far: int = 0
    norms: list[float] = []
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
        """Begin an era, unless it has begun (rule 5)."""
        if era > self.state.era:
            self.state.era, self.state.step = era, 0
            self.begin_anew()

    def begin_anew(self, *, results: bool = False) -> None:
        """Begin counts and history anew (rule 5). `results`: first and best result too."""
        state = self.state
        state.low, state.norms = {}, []
        state.below = state.skipped = state.far = 0
        if results:
            state.first, state.best = {}, {}

    def on_exam(self, exam: Exam) -> Alarm | None:
        """Take the result of an exam; return the alarm where rule 1 strikes."""
        state = self.state
        posed = {task: result for task, result in exam.results.items() if result.prompts}
        exam = msgspec.structs.replace(exam, results=posed)
        if (exam.era, exam.version) <= state.exam:
            return None
        state.exam = (exam.era, exam.version)
        self._rank(exam)
        if exam.era < state.era:
            return None  # of a version that was rolled back meanwhile
        self.begin(exam.era)
        low = {task: self._is_low(task, result) for task, result in exam.results.items()}
        state.low |= {task: state.low.get(task, 0) + 1 if is_low else 0 for task, is_low in low.items()}
        broken = [task for task, is_low in low.items() if is_low and 0 < self.limits.exams <= state.low[task]]
        return Alarm("held-out", self._sentence(broken, exam)) if broken else None

    def remaining_share(self, task: str, result: TaskResult) -> float | None:
        """Return what is left of a task's best, 1 at the best; None where rule 1 is off."""
        first, best = self.state.first.get(task), self.state.best.get(task)
        if first is None or best is None or self.limits.share <= 0:
            return None
        measure = self._measure(task)
        risen, fallen = (_sign(measure) * (best.value - other.value) for other in (first, result))
        has_risen = risen > 0 and risen >= RISE_ERRORS * math.hypot(first.error, best.error)
        has_fallen = fallen > 0 and fallen >= FALLEN_ERRORS * math.hypot(result.error, best.error)
        if best.value == measure.floor or not (has_risen or has_fallen):
            return None
        return (result.value - measure.floor) / (best.value - measure.floor)

    def on_step(self, era: int, step: int, metrics: Mapping[str, float]) -> Alarm | None:
        """Take the metrics of a step (coordinator/learner/step.py); return the alarm where one of rules 2 to 4
        strikes."""
        state = self.state
        self.begin(era)
        if era < state.era or step <= state.step:
            return None
        state.step = step
        alarms = [self._entropy(metrics), self._updates(metrics), self._gradient(metrics)]
        return next((alarm for alarm in alarms if alarm is not None), None)

    def rolled_back(self, root: bytes, era: int, *, automatic: bool) -> None:
        """Note that the version with `root` was published again, in `era`."""
        best = self.state.best_exam
        self.begin(era)
        self.begin_anew(results=best is None or best.root != root)
        if automatic:
            self.state.rollbacks[root.hex()] = self.state.rollbacks.get(root.hex(), 0) + 1

    def may_roll_back(self, root: bytes) -> bool:
        """Tell whether the version with `root` may be rolled back to without the operator."""
        return self.state.rollbacks.get(root.hex(), 0) < MOST_ROLLBACKS

    def _is_low(self, task: str, result: TaskResult) -> bool:
        state = self.state
        state.first.setdefault(task, result)
        state.best.setdefault(task, result)
        if _sign(self._measure(task)) * (result.value - state.best[task].value) > 0:
            state.best[task] = result
        left = self.remaining_share(task, result)
        return left is not None and left < self.limits.share

    def _rank(self, exam: Exam) -> None:
        """Keep the best exam of the run: by the mean over the tasks, weighted by their prompts; the first of equals."""
        prompts = sum(result.prompts for result in exam.results.values())
        if not prompts:
            return
        score = sum(_sign(self._measure(task)) * result.value * result.prompts for task, result in exam.results.items())
        if self.state.best_exam is None or score / prompts > self.state.best_score:
            self.state.best_exam, self.state.best_score = exam, score / prompts

    def _sentence(self, broken: Sequence[str], exam: Exam) -> str:
        def one(task: str) -> str:
            value, best = exam.results[task].value, self.state.best[task]
            return (
                f"{task} solves {value:.3f} at version {exam.version}, after {best.value:.3f} at version {best.version}"
            )

        return (
            f"held-out results have collapsed ({'; '.join(one(task) for task in broken)}): less than "
            f"{100 * self.limits.share:g} % of the best is left in {self.state.low[broken[0]]} evaluations in a row"
        )

    def _entropy(self, metrics: Mapping[str, float]) -> Alarm | None:
        entropy, state, least = metrics.get("entropy"), self.state, self.limits.entropy
        if entropy is None or least <= 0:
            return None
        state.below = state.below + 1 if entropy < least else 0
        if state.below < LOW_ENTROPY_STEPS:
            return None
        why = f"the policy's entropy is {entropy:.2g} nats, below {least:g} in {state.below} steps in a row"
        return Alarm("entropy", why)

    def _updates(self, metrics: Mapping[str, float]) -> Alarm | None:
        skipped, state = int(metrics.get("skipped_updates", 0)), self.state
        updates = int(metrics.get("updates", max(1, skipped)))
        if updates:
            state.skipped = state.skipped + skipped if skipped == updates else 0
        if not 0 < self.limits.skipped <= state.skipped:
            return None
        return Alarm("updates", f"{state.skipped} updates in a row were skipped: their gradients are not finite")

    def _gradient(self, metrics: Mapping[str, float]) -> Alarm | None:
        norm, state, factor = metrics.get("grad_norm", 0.0), self.state, self.limits.gradient
        if not (0 < norm < math.inf) or factor <= 0:
            return None
        usual = max(state.norms) if len(state.norms) >= LEAST_NORMS else math.inf
        if norm <= factor * usual:
            state.norms, state.far = [*state.norms[-NORM_HISTORY + 1 :], norm], 0
            return None
        state.far += 1
        if state.far < FAR_GRADIENT_STEPS:
            return None
        why = f"the gradient's norm is {norm:.3g}, in {state.far} steps in a row above {factor:g} times its greatest"
        return Alarm("gradient", f"{why} of the {len(state.norms)} steps before, {usual:.3g}")

    def _measure(self, task: str) -> Measure:
        return self._measures.get(task, Measure())


def _sign(measure: Measure) -> int:
    return 1 if measure.direction == "up" else -1
