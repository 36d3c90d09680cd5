"""When a node changes its version: by the age at which its groups would be drawn, and at once where that loses little."""

import pytest

from echo2.engines.process.change_time import GroupsUnderWay, StepPace, is_due

STEP = 60.0
LONG = GroupsUnderWay([[0.0, 40.0, 80.0, 120.0]], usual=120.0, is_wanted=True)
"""Groups of two steps, of which one has just begun."""
AT_ONCE: dict[str, GroupsUnderWay] = {
    "no group under way": LONG._replace(seconds=[[]]),
    "groups of which none has ended": LONG._replace(usual=None),
    "a lease was refused": LONG._replace(is_wanted=False),
    "one group after the other": LONG._replace(seconds=[[30.0]]),
    "one group after the other on each of two engines": LONG._replace(seconds=[[30.0], [90.0]]),
    "groups that end together": LONG._replace(seconds=[[30.0, 30.0, 30.0]]),
    "groups of a quarter of a step": LONG._replace(seconds=[[0.0, 5.0, 10.0]], usual=15.0),
    "groups that should have ended": LONG._replace(seconds=[[130.0, 200.0]]),
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


@pytest.mark.parametrize("groups", AT_ONCE.values(), ids=AT_ONCE.keys())
def test_a_node_changes_at_once_where_that_loses_little(groups: GroupsUnderWay) -> None:
    assert not is_due(1.0, STEP, 11, LONG)
    assert is_due(1.0, STEP, 11, groups)


@pytest.mark.parametrize(("behind", "staleness", "usual", "due"), BY_AGE.values(), ids=BY_AGE.keys())
def test_a_node_whose_rows_would_stand_empty_changes_by_age(
    behind: float, staleness: int, usual: float, due: bool
) -> None:
    assert is_due(behind, STEP, staleness, LONG._replace(seconds=[[0.0, usual]], usual=usual)) is due


def test_a_change_costs_the_time_from_the_end_of_a_group_to_that_of_the_last_one_of_its_engine() -> None:
    assert LONG.change_cost == 120.0 - (120.0 + 80.0 + 40.0 + 0.0) / 4
    assert LONG._replace(seconds=[[0.0, 60.0], [30.0], []]).change_cost == 15.0
    assert GroupsUnderWay().change_cost == 0.0


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
