"""The rows of a run's tasks: their results from run.sqlite, and what live objects know of them."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.views import Evaluation, TaskRow
from echo2.coordinator.submissions.episode_record import EpisodeRecords
from echo2.coordinator.verdicts import task_results
from echo2.coordinator.web.csv_export import cell, csv_text
from echo2.protocol.authority import TaskReference

COLUMNS = (
    "name", "kind", "share", "accepted", "unscored", "groups", "reward", "success", "signal", "cut", "missing",
    "sampled", "greedy",
)  # fmt: skip
"""Columns of the CSV, as fields of `TaskRow`, which explains them. `failed_episodes` follows, the sum of `failed`."""


def live_rows(
    tasks: Sequence[TaskReference], episodes: EpisodeRecords, evaluations: Mapping[int, Evaluation]
) -> list[TaskRow]:
    """Return the rows without the results of groups. `evaluations`: evaluations by version."""
    total = sum(task.weight for task in tasks)
    newest = max(evaluations.values(), key=lambda one: one.version, default=None)
    heldout = {} if newest is None else {one.task: one for one in newest.tasks}
    rows = []
    for task in tasks:
        row = TaskRow(
            name=task.name,
            kind=task.kind,
            share=task.weight / total,
            failed=dict(episodes.of(task.name).reasons),
        )
        if (one := heldout.get(task.name)) is not None:
            row = msgspec.structs.replace(row, sampled=one.sampled, greedy=one.greedy)
        rows.append(row)
    return rows


def complete_rows(rows: Iterable[TaskRow], database: Database) -> list[TaskRow]:
    """Return the rows with the results of groups."""
    total, recent, done = task_results.total(database), task_results.recent(database), list[TaskRow]()
    for row in rows:
        ever, last = (sums.get(row.name, task_results.TaskSums()) for sums in (total, recent))
        row = msgspec.structs.replace(row, accepted=ever.groups + ever.unscored, unscored=ever.unscored)
        if last.groups + last.unscored:
            row = msgspec.structs.replace(row, missing=last.missing_share, bias=task_results.length_bias(last))
        if last.groups:
            row = msgspec.structs.replace(
                row,
                groups=last.groups,
                reward=last.reward / last.rollouts,
                success=last.success / last.rollouts,
                signal=last.varied / last.groups,
                cut=last.cut / last.rollouts,
            )
        done.append(row)
    return done


def as_csv(rows: Iterable[TaskRow]) -> str:
    """Write a header and one row per task (RFC 4180). Unknown values are empty."""
    values = ([*(cell(getattr(row, column)) for column in COLUMNS), sum(row.failed.values())] for row in rows)
    return csv_text([[*COLUMNS, "failed_episodes"], *values])
