"""The results of a task's groups: all of them, and the last ones."""

from pathlib import Path

import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.task_results import (
    RESULT_WINDOW_GROUPS,
    TaskResults,
    TaskSums,
    length_bias,
    recent,
    sums_of,
    total,
)
from echo2.tasks.task import Score

GOOD, BAD = Score(1.0, True), Score(-0.5, False)
TWO = [3, 3], [False, False]
"""Lengths of two rollouts, which are not cut."""


def test_a_group_adds_its_rewards_and_whether_they_differ() -> None:
    assert sums_of([GOOD, BAD, BAD], [5] * 3, [True, False, True]) == TaskSums(1, 0, 3, 0.0, 1, 1, 2)
    assert sums_of([GOOD, GOOD], [5] * 2, [False] * 2) == TaskSums(1, 0, 2, 2.0, 2, 0, 0)
    assert sums_of([], [5, 6], [True] * 2) == TaskSums(unscored=1, missing=2)


def test_a_rollout_without_a_reward_is_in_no_mean_and_counts_by_its_length() -> None:
    sums = sums_of([GOOD, None, BAD, None], [4, 9, 6, 2], [False, True, False, False])
    assert sums == TaskSums(1, 0, 2, 0.5, 1, 1, 0, missing=2, longer=1, shorter=1)
    assert sums.missing_share == 0.5
    assert sums_of([GOOD, BAD, None], [5, 5, 5], [False] * 3)[-3:] == (1, 0, 0), "as long as the others"
    assert sums_of([GOOD, BAD, None], [5, 5, 0], [False] * 3)[-3:] == (1, 0, 0), "it was not opened"


@pytest.mark.parametrize(
    ("longer", "shorter", "named"),
    [(11, 0, ""), (12, 0, "longer"), (0, 12, "shorter"), (30, 20, ""), (40, 14, "longer"), (500, 500, "")],
)
def test_failures_that_depend_on_an_answers_length_are_named(longer: int, shorter: int, named: str) -> None:
    told = length_bias(TaskSums(longer=longer, shorter=shorter))
    assert (f"{max(longer, shorter)} are {named} than" in told) if named else not told


def test_recent_figures_are_of_the_last_one_or_two_hundred_groups(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        results = TaskResults(database)
        for number in range(1, 5 * RESULT_WINDOW_GROUPS + 1):
            results.add("add", 1, sums_of([GOOD if number > 3 * RESULT_WINDOW_GROUPS else BAD] * 2, *TWO))
            results.add("reverse", 1, sums_of([] if number % 2 else [GOOD, BAD], [3, 3], [True, False]))
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
