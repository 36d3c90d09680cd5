"""When a node changes its version: by the age at which its groups are drawn, and at once where that loses little."""

import pytest

from echo2.engines.process.change_time import ChangeLoss, StepPace, WorkFacts, is_due

STEP = 60.0
LONG = WorkFacts(is_working=True, is_wanted=True, group=120.0, row=30.0, change=60.0)
"""Groups of two steps, whose rows stand empty for one step at a change."""
AT_ONCE: dict[str, WorkFacts] = {
    "no group under way": LONG._replace(is_working=False),
    "a lease was refused": LONG._replace(is_wanted=False),
    "groups of which none has ended": LONG._replace(group=None),
    "changes of which none was measured": LONG._replace(change=None),
    "a change that costs less than a quarter of a step": LONG._replace(change=14.9),
    "groups that end together": LONG._replace(change=0.0),
    "rollouts that do not end in the two steps until age asks for it": LONG._replace(row=121.0),
}
BY_AGE: dict[str, tuple[float, int, float, bool]] = {
    "S = 0": (1.0, 0, 120.0, True),
    "S = 1": (1.0, 1, 60.0, True),
    "S = 2, a group of one step is too old": (1.0, 2, 60.0, True),
    "S = 4, a group of two steps is in time": (1.9, 4, 120.0, False),
    "S = 4, a second version is there": (2.0, 4, 90.0, True),
    "S = 4, a group of two and a half steps is too old": (1.5, 4, 150.0, True),
    "S = 4, groups longer than that": (1.0, 4, 300.0, True),
    "S = 11, drawn within 5": (2.9, 11, 120.0, False),
    "S = 11, drawn after 5": (3.0, 11, 120.0, True),
    "S = 11, one version is passed over, however long groups take": (1.9, 11, 360.0, False),
    "S = 11, a second one is not": (2.0, 11, 360.0, True),
    "versions for every second step": (2.0, 4, 120.0, True),
}


@pytest.mark.parametrize("work", AT_ONCE.values(), ids=AT_ONCE.keys())
def test_a_node_changes_at_once_where_that_loses_little(work: WorkFacts) -> None:
    assert not is_due(1.0, STEP, 11, LONG)
    assert is_due(1.0, STEP, 11, work)


@pytest.mark.parametrize(("behind", "staleness", "group", "due"), BY_AGE.values(), ids=BY_AGE.keys())
def test_a_node_whose_rows_would_stand_empty_changes_by_age(
    behind: float, staleness: int, group: float, due: bool
) -> None:
    assert is_due(behind, STEP, staleness, LONG._replace(group=group)) is due


def test_a_change_costs_the_time_for_which_rows_stand_empty_in_the_mean() -> None:
    cost = ChangeLoss()
    assert cost.seconds() is None
    cost.on_rows(8, 5.0)
    cost.begin(4, 10.0)
    for rows, now in ((3, 12.0), (1, 20.0), (2, 24.0), (0, 30.0)):
        cost.on_rows(rows, now)
    cost.begin(2, 31.0)  # another wish to change
    cost.end(32.0)
    assert cost.seconds() == (8 * 1 + 4 * 3 + 6 * 2 + 2 * 4) / 4


def test_a_change_among_rows_that_end_together_costs_nothing_and_one_among_none_is_not_measured() -> None:
    cost = ChangeLoss()
    cost.begin(0, 1.0)
    cost.end(3.0)
    assert cost.seconds() is None
    cost.begin(2, 5.0)
    cost.on_rows(3, 6.0)  # a row that waited
    cost.on_rows(0, 9.0)
    cost.end(9.0)
    assert cost.seconds() == 0.0


def test_the_cost_of_a_change_is_the_median_of_the_last_ones() -> None:
    cost = ChangeLoss()
    for number in range(12):
        cost.begin(1, 100.0 * number)
        cost.on_rows(0, 100.0 * number + 1)
        cost.end(100.0 * number + 1 + number)
    assert cost.seconds() == 7.5


def test_the_time_of_a_step_is_the_median_over_the_versions_heard_of() -> None:
    pace = StepPace()
    assert pace.seconds() is None
    assert pace.behind(3, 5) is None
    for version, issued in ((3, 1_000), (4, 61_000), (4, 90_000), (6, 181_000), (7, 200_000)):
        pace.on_head(version, issued)
    assert pace.seconds() == 60.0
    assert pace.behind(5, 215_000) == 2.25
    assert pace.behind(5, 100) == 2.0, "a clock that was set back"


def test_where_steps_were_undone_they_are_counted_anew() -> None:
    pace = StepPace()
    for version, issued in ((8, 1_000), (9, 2_000), (5, 3_000)):
        pace.on_head(version, issued)
    assert pace.seconds() is None
    pace.on_head(6, 9_000)
    assert pace.seconds() == 6.0


def test_versions_announced_at_one_moment_say_nothing_of_a_step() -> None:
    pace = StepPace()
    for version in range(3):
        pace.on_head(version, 1_000)
    assert pace.seconds() is None
    assert pace.behind(0, 9_000) is None
