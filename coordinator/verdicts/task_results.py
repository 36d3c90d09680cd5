"""Rewards of each task's accepted groups: since the run began, and of the last ones, which tell how difficult it is.

Rules
1. A group is added in the transaction of its verdict: each once, whatever crashes.
2. A task has three rows. `all` is of all groups. `last` is of the newest ones; at `RESULT_WINDOW_GROUPS` groups it
   takes the place of `before`, and begins anew. So the recent figures (`recent`) are of the last `RESULT_WINDOW_GROUPS`
   to 2 x `RESULT_WINDOW_GROUPS` groups, less at the run's beginning, and the table does not grow with the run.
3. A rollout without a finite reward counts as `missing`, and in no other sum of rollouts. A group of which fewer than
   two have one counts as `unscored`, with all of its rollouts as `missing`.
4. Where failures depend on an answer's length, masking them teaches the policy to fail. Of a missing rollout it counts
   whether it is longer than the mean of its group's others, or shorter: a prompt's difficulty has no part in that. A
   sign test tells (`length_bias`). One without a sampled token counts neither way: its environment did not open it.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.database.database import Database
from echo2.tasks.task import Score

RESULT_WINDOW_GROUPS: Final = 100
"""Groups."""
_ADD_RESULT: Final = (
    "INSERT INTO task_results VALUES (?1, ?2, 'all', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12),"
    " (?1, ?2, 'last', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO UPDATE SET"
    " groups = groups + excluded.groups, unscored = unscored + excluded.unscored,"
    " rollouts = rollouts + excluded.rollouts, reward = reward + excluded.reward,"
    " success = success + excluded.success, varied = varied + excluded.varied, cut = cut + excluded.cut,"
    " missing = missing + excluded.missing, longer = longer + excluded.longer, shorter = shorter + excluded.shorter"
)
LEAST_COMPARED: Final = 12
"""Missing rollouts that a sentence about their length takes."""
BIAS_ERRORS: Final = 3.0
"""Standard errors of the sign test."""


class TaskSums(NamedTuple):
    """Sums over groups. `groups`: groups with rewards. `unscored`: without. `rollouts`: rollouts of `groups`
    with a reward. `reward`, `success`: reward and success over these rollouts. `varied`: groups whose rewards are not
    all equal, from which a policy can learn. `cut`: rollouts that the token limit cut. `missing`, `longer`, `shorter`:
    see rules 3 and 4."""

    groups: int = 0
    unscored: int = 0
    rollouts: int = 0
    reward: float = 0.0
    success: int = 0
    varied: int = 0
    cut: int = 0
    missing: int = 0
    longer: int = 0
    shorter: int = 0

    @property
    def missing_share(self) -> float:
        """The share of rollouts without a finite reward."""
        return self.missing / max(1, self.missing + self.rollouts)


def sums_of(scores: Sequence[Score | None], lengths: Sequence[int], cut: Sequence[bool]) -> TaskSums:
    """Return the sums of one accepted group. `scores`: None: no finite reward; empty: the group counts as without any.
    `lengths`: sampled tokens of each rollout. `cut`: whether the token limit cut it."""
    known = {number: score for number, score in enumerate(scores) if score is not None}
    if not known:
        return TaskSums(unscored=1, missing=len(lengths))
    rewards = [score.reward for score in known.values()]
    usual = sum(lengths[number] for number in known) / len(known)
    missing = [length for number, length in enumerate(lengths) if number not in known]
    return TaskSums(
        1, 0, len(known), sum(rewards), sum(score.success for score in known.values()), int(len(set(rewards)) > 1),
        sum(cut[number] for number in known), len(missing), sum(one > usual for one in missing),
        sum(0 < one < usual for one in missing),
    )  # fmt: skip


def length_bias(sums: TaskSums) -> str:
    """Return a sentence where failures depend on an answer's length (rule 4); empty: nothing shows it."""
    compared, more = sums.longer + sums.shorter, max(sums.longer, sums.shorter)
    if compared < LEAST_COMPARED or 2 * more - compared < BIAS_ERRORS * math.sqrt(compared):
        return ""
    kind = "longer" if sums.longer == more else "shorter"
    return (
        f"failures depend on the length of an answer: of {compared} rollouts without a reward {more} are {kind} than "
        f"the others of their group; they are masked, so the policy may learn to give {kind} answers that fail"
    )


class TaskResults:
    """The table `task_results`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def on_decided(self, end: Decided) -> None:
        """Add a group that counts for its task, in the transaction of its verdict."""
        if (group := end.of_task) is not None:
            self.add(end.lease.task, end.lease.task_version, sums_of(group.scores, group.lengths, group.cut))

    def add(self, task: str, version: int, sums: TaskSums) -> None:
        """Add a group, in the caller's transaction (rule 1)."""
        key, of_task = (task, version), "WHERE task = ? AND task_version = ? AND span = ?"
        self._database.later(_ADD_RESULT, (*key, *sums))
        last: int | None = self._database.written.get("task_results", key)
        if last is None:
            last = self._database.value(f"SELECT groups + unscored FROM task_results {of_task}", (*key, "last"))
        else:
            last += sums.groups + sums.unscored
        if last >= RESULT_WINDOW_GROUPS:
            self._database.do(f"DELETE FROM task_results {of_task}", (*key, "before"))
            self._database.do(f"UPDATE task_results SET span = 'before' {of_task}", (*key, "last"))
            last = 0
        self._database.written.put("task_results", key, last)


def total(database: Database) -> dict[str, TaskSums]:
    """Return the sums of each task since the run began."""
    return _read(database, "span = 'all'")


def recent(database: Database) -> dict[str, TaskSums]:
    """Return the sums of each task's last groups (rule 2)."""
    return _read(database, "span != 'all'")


def _read(database: Database, which: str) -> dict[str, TaskSums]:
    columns = ", ".join(f"sum({column})" for column in TaskSums._fields)
    rows = database.all(f"SELECT task, {columns} FROM task_results WHERE {which} GROUP BY task")
    return {task: TaskSums(*sums) for task, *sums in rows}
