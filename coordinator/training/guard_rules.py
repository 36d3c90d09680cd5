"""The ways in which the steps of a run show that it dies, each a rule over their figures. Pure.

Rules
1. A rule reads the mean of the last `AVERAGED_STEPS` steps that have its figure. A step without the figure (without
   signal there is no entropy) counts neither way.
2. Signal: of the groups of the last `SIGNAL_STEPS` steps, of more where these have fewer than `SIGNAL_GROUPS`, at most
   `LEAST_SIGNAL` have rewards that differ. The task is then too hard where at most `FEW_SOLVED` of the answers are
   solved, too easy where at least as many are, and else its score gives no signal. `echo2-coord task try --model`
   measures the same two shares.
3. Cut: at least `MOST_CUT` of the answers are cut at the limit, and they solve at most half of what was solved at best.
4. Entropy is that of groups with signal: it is far from its start below `LOW_ENTROPY` times the mean of the first
   `FIRST_STEPS` steps (or below `LEAST_ENTROPY` nats), unless the policy has learned its task and solves nearly all;
   and above `HIGH_ENTROPY` times it plus `ENTROPY_RISE` nats.
5. Same: `SAME_ANSWERS` of the answers to the prompts of a step are one and the same, though the policy solves half of
   them at most, or answered differently at its start.
6. Drift: the policy is `MOST_DRIFT` (mean squared log-ratio, or KL in nats per token) from the version that generated,
   or `MOST_DIVERGENCE` nats per token from the base.
7. Gradient: no update of the step could be made, as its gradients are not finite; or they are 0, though there is
   signal; or their norm is above `FAR_NORM` times the greatest of its history, the last `NORM_HISTORY` norms that were
   not, of which there are at least `LEAST_NORMS`. A step without signal counts neither way.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

AVERAGED_STEPS: Final = 2
FIRST_STEPS: Final = 8
LEAST_PROMPTS: Final = 4
"""Groups of a step whose answers are compared."""
SIGNAL_STEPS: Final = 8
SIGNAL_GROUPS: Final = 48
LEAST_SIGNAL: Final = 0.03
FEW_SOLVED: Final = 0.1
MOST_CUT: Final = 0.8
LOW_ENTROPY, LEAST_ENTROPY = 0.1, 0.001
HIGH_ENTROPY, ENTROPY_RISE = 2.0, 0.3
SAME_ANSWERS: Final = 0.9
MOST_DRIFT: Final = 1.0
MOST_DIVERGENCE: Final = 5.0
FAR_NORM: Final = 10.0
NORM_HISTORY: Final = 64
LEAST_NORMS: Final = 16
REMEMBERED_STEPS: Final = 64


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules need of a step's metrics (coordinator/learner/step.py). `signal`: groups with signal. `solved`:
    share of answers. None: the step has no such figure."""

    groups: float
    signal: float
    solved: float
    reward: float
    entropy: float | None = None
    cut: float | None = None
    same: float | None = None
    drift: float | None = None
    divergence: float | None = None


class Steps(msgspec.Struct, kw_only=True):
    """What is remembered of the steps. `first`, `last`: the first and the last ones. `solved`: most that was solved in
    the mean of `SIGNAL_STEPS` steps. `norms`: the history of rule 7."""

    first: list[StepFigures] = []
    last: list[StepFigures] = []
    solved: float = 0.0
    norms: list[float] = []

    def take(self, metrics: Mapping[str, float]) -> None:
        figures = figures_of(metrics)
        if len(self.first) < FIRST_STEPS:
            self.first = [*self.first, figures]
        self.last = [*self.last[-REMEMBERED_STEPS + 1 :], figures]
        if len(self.last) >= SIGNAL_STEPS:
            self.solved = max(self.solved, mean([one.solved for one in self.last[-SIGNAL_STEPS:]]))

    def now(self, name: str) -> float | None:
        """Return the mean of a figure over the last steps that have it (rule 1); None: the last step has none, or too
        few have."""
        known = [value for one in self.last if (value := getattr(one, name)) is not None][-AVERAGED_STEPS:]
        has = bool(self.last) and getattr(self.last[-1], name) is not None
        return mean(known) if has and len(known) == AVERAGED_STEPS else None

    def start(self, name: str) -> float | None:
        """Return the mean of a figure over the first steps; None while there are too few."""
        known = [value for one in self.first if (value := getattr(one, name)) is not None]
        whole = len(self.first) == FIRST_STEPS and 2 * len(known) >= FIRST_STEPS
        return mean(known) if whole else None


class Reading(NamedTuple):
    """What a rule reads. `holds`: whether the run dies of it; None: it cannot be told. `now`: its figure, in words."""

    holds: bool | None
    now: str = ""


NOTHING: Final = Reading(None)


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 of none."""
    return sum(values) / max(1, len(values))


def figures_of(metrics: Mapping[str, float]) -> StepFigures:
    """Return the figures of a step's metrics; one that is not finite is none."""

    def get(name: str) -> float | None:
        value = metrics.get(name)
        return value if value is not None and math.isfinite(value) else None

    groups, entropy = metrics.get("groups", 0.0), get("entropy")
    ratios = [] if entropy is None else [value for name in ("log_ratio2", "kl") if (value := get(name)) is not None]
    return StepFigures(
        groups=groups,
        signal=groups * (1 - metrics.get("zero_variance", 0.0)),
        solved=get("success") or 0.0,
        reward=get("reward") or 0.0,
        entropy=entropy,
        cut=get("cut_answers"),
        same=get("same_answers") if groups >= LEAST_PROMPTS else None,
        drift=max(ratios, default=None),
        divergence=get("kl_reference"),
    )


def _signal(steps: Steps) -> tuple[str, Reading]:
    """Return which of the kinds of rule 2 it may be, and the reading."""
    count, groups = 0, 0.0
    for figures in reversed(steps.last):
        if count >= SIGNAL_STEPS and groups >= SIGNAL_GROUPS:
            break
        count, groups = count + 1, groups + figures.groups
    part = steps.last[len(steps.last) - count :]
    if count < SIGNAL_STEPS or groups < SIGNAL_GROUPS:
        return "", NOTHING
    signal, solved = sum(one.signal for one in part), mean([one.solved for one in part])
    kind = "too-hard" if solved <= FEW_SOLVED else "too-easy" if solved >= 1 - FEW_SOLVED else "no-signal"
    said = f"{100 * solved:.1f} % of answers solved, {100 * steps.solved:.1f} % at best"
    now = f"{signal:.0f} of {groups:.0f} groups with rewards that differ, {said}"
    return kind, Reading(signal <= LEAST_SIGNAL * groups, now)


def _signal_rule(kind: str) -> Callable[[Steps], Reading]:
    def read(steps: Steps) -> Reading:
        which, reading = _signal(steps)
        return reading if which in ("", kind) else Reading(False, reading.now)

    return read


def _cut(steps: Steps) -> Reading:
    cut = steps.now("cut")
    if cut is None:
        return NOTHING
    solved = steps.now("solved") or 0.0
    holds = cut >= MOST_CUT and solved <= max(steps.solved / 2, FEW_SOLVED / 2)
    return Reading(holds, f"{100 * cut:.0f} % of answers cut, {100 * solved:.1f} % solved")


def _entropy(steps: Steps, far: Callable[[float, float], bool]) -> Reading:
    now, start = steps.now("entropy"), steps.start("entropy")
    if now is None or start is None:
        return NOTHING
    return Reading(far(now, start), f"{now:.2g} nats a token, {start:.2g} at the start")


def _entropy_low(steps: Steps) -> Reading:
    learned = (steps.now("solved") or 0.0) >= 1 - FEW_SOLVED
    return _entropy(steps, lambda now, start: now < max(LEAST_ENTROPY, LOW_ENTROPY * start) and not learned)


def _entropy_high(steps: Steps) -> Reading:
    return _entropy(steps, lambda now, start: now > HIGH_ENTROPY * start + ENTROPY_RISE)


def _same(steps: Steps) -> Reading:
    now, start = steps.now("same"), steps.start("same")
    if now is None or start is None:
        return NOTHING
    solved = steps.now("solved") or 0.0
    holds = now >= SAME_ANSWERS and (solved <= 0.5 or start <= SAME_ANSWERS - 0.25)
    return Reading(holds, f"{100 * now:.0f} % of answers are the same, {100 * start:.0f} % at the start")


def _drift(steps: Steps) -> Reading:
    drift, divergence = steps.now("drift"), steps.now("divergence")
    if drift is None and divergence is None:
        return NOTHING
    base = "" if divergence is None else f", {divergence:.2g} nats from the base"
    holds = (drift or 0.0) > MOST_DRIFT or (divergence or 0.0) > MOST_DIVERGENCE
    return Reading(holds, f"{drift or 0.0:.2g} from the version that generated{base}")


def take_norm(steps: Steps, metrics: Mapping[str, float]) -> Reading:
    """Take the gradients of a step, and read rule 7."""
    skipped, updates, norm = metrics.get("skipped_updates", 0.0), metrics.get("updates", 1.0), metrics.get("grad_norm")
    if updates and skipped == updates:
        return Reading(True, "the gradients are not finite, so no update was made")
    if norm is None or not 0 < norm < math.inf:
        gone = norm == 0 and bool(updates) and steps.last[-1].entropy is not None
        return Reading(True, "all gradients are 0, though rewards differ") if gone else NOTHING
    usual = max(steps.norms) if len(steps.norms) >= LEAST_NORMS else math.inf
    if norm <= FAR_NORM * usual:
        steps.norms = [*steps.norms[-NORM_HISTORY + 1 :], norm]
        return Reading(False, f"norm {norm:.2g}, at most {max(steps.norms):.2g} before")
    return Reading(True, f"norm {norm:.2g}, at most {usual:.2g} before")


class StepRule(NamedTuple):
    """A rule over steps. `title`: the way to die. `remedy`: what the operator may do. `read`: None: `take_norm`.
    `pause`: count of steps at which the run is paused. `breaks`: an earlier version is better than this one."""

    title: str
    remedy: str
    read: Callable[[Steps], Reading] | None
    pause: int = 16
    breaks: bool = True


_TRY: Final = "`echo2-coord task try` with the model shows its answers and their scores"
_LOWER_RATE: Final = "lower `learner.learning_rate`"
STEP_RULES: Final[Mapping[str, StepRule]] = {
    "gradient": StepRule(
        "gradients are not finite, vanish or grow", f"{_LOWER_RATE} or `learner.gradient_clip`", None, 3
    ),
    "drift": StepRule("the policy runs away", f"{_LOWER_RATE}, or set `learner.kl_coefficient`", _drift),
    "entropy-high": StepRule("entropy is far above its start", f"{_LOWER_RATE}: the policy forgets", _entropy_high),
    "entropy-low": StepRule(
        "entropy is far below its start",
        f"{_LOWER_RATE} or raise `learner.eps_high`: the policy tries nothing new",
        _entropy_low,
    ),
    "same-answer": StepRule(
        "the same answer everywhere", f"correct the task's score where it pays that answer: {_TRY}", _same
    ),
    "cut": StepRule(
        "answers are cut at the limit",
        "set `learner.cut_rollouts` to penalised, or begin a run with a larger `run.limit`",
        _cut,
        breaks=False,
    ),
    "too-hard": StepRule(
        "the task is too hard",
        f"take easier prompts or a stronger model: {_TRY}",
        _signal_rule("too-hard"),
        breaks=False,
    ),
    "too-easy": StepRule(
        "the task is too easy",
        "take harder prompts, or take the model: `echo2-coord policy export`",
        _signal_rule("too-easy"),
        breaks=False,
    ),
    "no-signal": StepRule(
        "no group with signal",
        f"correct the task's score, which tells no answer to a prompt from another: {_TRY}",
        _signal_rule("no-signal"),
        breaks=False,
    ),
}
