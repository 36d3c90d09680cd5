"""Rewards of each task's accepted groups: since the run began, and of the last ones, which tell how difficult it is.

Rules
1. A group is added in the transaction of its verdict: each once, whatever crashes.
2. A task has three rows. `all` is of all groups. `last` is of the newest ones; at `WINDOW` groups it takes the place of
   `before`, and begins anew. So the recent figures (`recent`) are of the last `WINDOW` to 2 x `WINDOW` groups, less at
   the run's beginning, and the table does not grow with the run.
3. A group without finite rewards counts as `unscored` and in nothing else.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from coordinator.database import Database
from tasks.task import Score

WINDOW: Final = 100
"""Groups."""
_ADD: Final = (
    "INSERT INTO task_results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " groups = groups + excluded.groups, unscored = unscored + excluded.unscored,"
    " rollouts = rollouts + excluded.rollouts, reward = reward + excluded.reward,"
    " success = success + excluded.success, varied = varied + excluded.varied, cut = cut + excluded.cut"
)
_SUMS: Final = "sum(groups), sum(unscored), sum(rollouts), sum(reward), sum(success), sum(varied), sum(cut)"


class TaskSums(NamedTuple):
    """Sums over groups. `groups`: with rewards. `unscored`: without. `rollouts`: of `groups`. `reward`, `success`: over
    these rollouts. `varied`: groups whose rewards are not all equal, from which a policy can learn. `cut`: rollouts
    that the token limit cut."""

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
        for span in ("all", "last"):
            self._database.do(_ADD, (task, version, span, *sums))
        key, is_last = (task, version), "WHERE task = ? AND task_version = ? AND span = 'last'"
        if self._database.value(f"SELECT groups + unscored FROM task_results {is_last}", key) >= WINDOW:
            self._database.do("DELETE FROM task_results WHERE task = ? AND task_version = ? AND span = 'before'", key)
            self._database.do(f"UPDATE task_results SET span = 'before' {is_last}", key)


def total(database: Database) -> dict[str, TaskSums]:
    """Return the sums of each task since the run began."""
    return _read(database, "span = 'all'")


def recent(database: Database) -> dict[str, TaskSums]:
    """Return the sums of each task's last groups (rule 2)."""
    return _read(database, "span != 'all'")


def _read(database: Database, which: str) -> dict[str, TaskSums]:
    rows = database.all(f"SELECT task, {_SUMS} FROM task_results WHERE {which} GROUP BY task")
    return {task: TaskSums(*sums) for task, *sums in rows}
