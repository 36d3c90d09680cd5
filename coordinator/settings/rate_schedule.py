"""The learning rate of each step. Pure.

Rules
1. The rate of a step is learning_rate x warm-up x schedule x the factor of all rollbacks.
2. Warm-up counts the steps of the optimiser: the n-th has n / warmup_steps, at most 1. A rollback begins a new
   optimiser, so the rate warms up once more.
3. The schedule counts the steps of the run, as the page does and through all eras: neither a restart nor a rollback
   leads back to a higher rate. Step s is at p = (s - warmup_steps) / (schedule_steps - warmup_steps), from 0 to 1.
   constant: 1. linear: 1 - (1 - e) p. cosine: e + (1 - e) (1 + cos(pi p)) / 2. e: schedule_end. steps: the fraction of
   the last of `schedule_points` whose step is not above s; 1 before the first.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Protocol


class RateSettings(Protocol):
    """The settings of [learner] that decide the rate."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def schedule_steps(self) -> int | None: ...
    @property
    def schedule_end(self) -> float: ...
    @property
    def schedule_points(self) -> Sequence[tuple[int, float]]: ...


def refusal(settings: RateSettings) -> str:
    """Return why the settings of the schedule contradict each other, in a sentence; empty: they do not."""
    kind, last, points = settings.schedule, settings.schedule_steps, settings.schedule_points
    if kind in ("linear", "cosine"):
        if last is None:
            return f"schedule {kind} needs schedule_steps, the step of the run at which the rate has fallen"
        if last <= settings.warmup_steps:
            return f"schedule_steps is {last}, and the warm-up alone takes {settings.warmup_steps} steps: set more"
    elif last is not None:
        return f"schedule_steps is of the schedules linear and cosine, and schedule is {kind}: unset it"
    if kind == "steps" and not points:
        return "schedule steps needs schedule_points, as [[1000, 0.5], [2000, 0.1]]"
    if kind != "steps" and points:
        return f"schedule_points is of the schedule steps, and schedule is {kind}: unset it"
    if any(later[0] <= earlier[0] for earlier, later in itertools.pairwise(points)):
        return "schedule_points has steps that do not rise: each names a later one than that before it"
    return ""


def warm_up(settings: RateSettings, steps: int) -> float:
    """Return the factor of rule 2 for the step after `steps` ones of the optimiser."""
    return min(1.0, (steps + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0


def decay(settings: RateSettings, step: int) -> float:
    """Return the factor of rule 3 for step `step` of the run, counted from 1."""
    if settings.schedule == "steps":
        return next((share for at, share in reversed(settings.schedule_points) if at <= step), 1.0)
    if settings.schedule == "constant" or settings.schedule_steps is None:
        return 1.0
    part = (step - settings.warmup_steps) / (settings.schedule_steps - settings.warmup_steps)
    part, end = min(1.0, max(0.0, part)), settings.schedule_end
    fall = 1 - part if settings.schedule == "linear" else (1 + math.cos(math.pi * part)) / 2
    return end + (1 - end) * fall


def describe_rate(settings: RateSettings, factor: float = 1.0) -> str:
    """Describe the rate for people. `factor`: that of rollbacks."""
    peak = f"{settings.learning_rate:g}" + f" x {factor:g} by rollbacks" * (factor != 1)
    if settings.schedule == "constant":
        return peak
    if settings.schedule == "steps":
        points = ", ".join(f"{share:g} of it from step {at}" for at, share in settings.schedule_points)
        return f"{peak}, {points}"
    return f"{peak}, {settings.schedule} to {settings.schedule_end:g} of it at step {settings.schedule_steps}"
