"""The learner's metrics of a step, in all and by age, as rows of the page and of the CSV."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from echo2.coordinator.metrics.views import RunState, StepPoint
from echo2.coordinator.web.csv_export import csv_text

COLUMNS = ("reward", "length", "ess", "log_ratio2", "kl", "entropy", "masked", "clipped", "truncated")
"""Metrics that a step has in all and by age; coordinator/learner/objective/step_metrics.py explains them."""
_AGED_METRIC = re.compile(r"(.+)_age_(\d+)")


class StepRow(NamedTuple):
    """Metrics of a step. `age`: age of the groups that they are of; None: all. `values`: values by COLUMNS; None: not
    known."""

    age: int | None
    values: list[float | None]


def rows(step: StepPoint) -> list[StepRow]:
    """Return a row for all groups, then one per age. A step without groups of an age has no values of it."""
    ages = {int(match[2]) for name in step.metrics if (match := _AGED_METRIC.fullmatch(name)) and match[1] in COLUMNS}
    whole = StepRow(None, [step.metrics.get(name) for name in COLUMNS])
    return [whole, *(StepRow(age, [step.metrics.get(f"{name}_age_{age}") for name in COLUMNS]) for age in sorted(ages))]


def last_step_rows(state: RunState) -> list[StepRow]:
    """Return the rows of the last step; none before the first, nor for a step of a program without these metrics."""
    last = rows(state.steps[-1]) if state.steps else []
    return last if any(value is not None for row in last for value in row.values) else []


def as_csv(steps: Iterable[StepPoint]) -> str:
    """Write a header and, per step, a row for all groups and one per age (RFC 4180). Unknown values are empty."""
    values = ([step.step, step.at, row.age, *row.values] for step in steps for row in rows(step))
    return csv_text([["step", "at", "age", *COLUMNS], *values])
