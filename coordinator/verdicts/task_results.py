"""Rewards of each task's accepted groups: since the run began, and of the last ones, which tell how difficult it is.

Rules
1. A group is added in the transaction of its verdict: each once, whatever crashes.
2. A task has three rows. `all` is of all groups. `last` is of the newest ones; at `RESULT_WINDOW_GROUPS` groups it
   takes the place of `before`, and begins anew. So the recent figures (`recent`) are of the last `RESULT_WINDOW_GROUPS`
   to 2 x `RESULT_WINDOW_GROUPS` groups, less at the run's beginning, and the table does not grow with the run.
3. A group without finite rewards counts as `unscored` and in nothing else.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.coordinator.database.database import Database
from echo2.tasks.task import Score

RESULT_WINDOW_GROUPS: Final = 100
"""Groups."""
_ADD_RESULT: Final = (
    "INSERT INTO task_results VALUES (?1, ?2, 'all', ?3, ?4, ?5, ?6, ?7, ?8, ?9),"
    " (?1, ?2, 'last', ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO UPDATE SET"
    " groups = groups + excluded.groups, unscored = unscored + excluded.unscored,"
    " rollouts = rollouts + excluded.rollouts, reward = reward + excluded.reward,"
    " success = success + excluded.success, varied = varied + excluded.varied, cut = cut + excluded.cut"
)
_SUMS: Final = "sum(groups), sum(unscored), sum(rollouts), sum(reward), sum(success), sum(varied), sum(cut)"


class TaskSums(NamedTuple):
    """Sums over groups. `groups`: groups with rewards. `unscored`: without. `rollouts`: rollouts of `groups`. `reward`,
    `success`: reward and success over these rollouts. `varied`: groups whose rewards are not all equal, from which a
    policy can learn. `cut`: rollouts that the token limit cut."""

    groups: int = 0
    unscored: int = 0
    rollouts: int = 0
    reward: float = 0.0
    success: int = 0
    varied: int = 0
    cut: int = 0


def sums_of(scores: Sequence[Score], cut: int) -> TaskSums:
    """Return the sums of one accepted group. `scores`: empty: it has no finite rewards. `cut`: its rollouts that the
    token limit cut."""
    if not scores:
        return TaskSums(unscored=1)
    rewards = [score.reward for score in scores]
    success = sum(score.success for score in scores)
    return TaskSums(1, 0, len(scores), sum(rewards), success, int(len(set(rewards)) > 1), cut)


class TaskResults:
    """The table `task_results`."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
    rows = database.all(f"SELECT task, {_SUMS} FROM task_results WHERE {which} GROUP BY task")
    return {task: TaskSums(*sums) for task, *sums in rows}
