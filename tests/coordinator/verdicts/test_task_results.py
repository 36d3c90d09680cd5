"""The results of a task's groups: all of them, and the last ones."""

from pathlib import Path

from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.task_results import RESULT_WINDOW_GROUPS, TaskResults, TaskSums, recent, sums_of, total
from echo2.tasks.task import Score

GOOD, BAD = Score(1.0, True), Score(-0.5, False)


def test_a_group_adds_its_rewards_and_whether_they_differ() -> None:
    assert sums_of([GOOD, BAD, BAD], cut=2) == TaskSums(1, 0, 3, 0.0, 1, 1, 2)
    assert sums_of([GOOD, GOOD], cut=0) == TaskSums(1, 0, 2, 2.0, 2, 0, 0)
    assert sums_of([], cut=1) == TaskSums(unscored=1)


def test_recent_figures_are_of_the_last_one_or_two_hundred_groups(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        results = TaskResults(database)
        for number in range(1, 5 * RESULT_WINDOW_GROUPS + 1):
            results.add("add", 1, sums_of([GOOD if number > 3 * RESULT_WINDOW_GROUPS else BAD] * 2, 0))
            results.add("reverse", 1, sums_of([], 0) if number % 2 else sums_of([GOOD, BAD], 1))
            groups = recent(database)["add"].groups
            assert (
                groups == number
                if number < RESULT_WINDOW_GROUPS
                else RESULT_WINDOW_GROUPS <= groups < 2 * RESULT_WINDOW_GROUPS
            )
        assert recent(database)["add"] == TaskSums(
            RESULT_WINDOW_GROUPS,
            0,
            2 * RESULT_WINDOW_GROUPS,
            2.0 * RESULT_WINDOW_GROUPS,
            2 * RESULT_WINDOW_GROUPS,
            0,
            0,
        )
        assert total(database)["add"] == TaskSums(
            5 * RESULT_WINDOW_GROUPS, 0, 10 * RESULT_WINDOW_GROUPS, RESULT_WINDOW_GROUPS, 4 * RESULT_WINDOW_GROUPS, 0, 0
        )
        whole = total(database)["reverse"]
        assert (whole.groups, whole.unscored, whole.varied, whole.cut) == (250, 250, 250, 250)
        assert database.value("SELECT count(*) FROM task_results") <= 6
