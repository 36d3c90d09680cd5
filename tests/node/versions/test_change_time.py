"""When a node changes its version: by the age at which its groups would be drawn."""

import pytest

from echo2.node.versions.change_time import StepTime, is_due

DUE: dict[str, tuple[int, float, int, float | None, bool]] = {
    "one behind, S = 4, groups of half a step": (1, 0.2, 4, 0.5, False),
    "two behind, S = 4": (2, 0.0, 4, 0.5, True),
    "two behind, S = 5": (2, 0.0, 5, 0.5, False),
    "one behind, S = 1": (1, 0.0, 1, 0.5, True),
    "one behind, S = 2": (1, 0.0, 2, 0.5, True),
    "S = 0": (1, 0.0, 0, 0.5, True),
    "long groups that are drawn in time": (1, 0.7, 4, 2.2, False),
    "long groups that would be too old": (1, 0.9, 4, 2.2, True),
    "groups longer than S": (1, 0.0, 4, 5.0, True),
    "short groups": (1, 0.0, 11, 0.1, True),
    "groups of which nothing is known": (1, 0.0, 11, None, True),
    "five behind, S = 11": (5, 0.9, 11, 2.0, False),
    "six behind, S = 11": (6, 0.0, 11, 2.0, True),
}


@pytest.mark.parametrize(("lag", "since", "staleness", "steps", "due"), DUE.values(), ids=DUE.keys())
def test_a_change_is_due(lag: int, since: float, staleness: int, steps: float | None, due: bool) -> None:
    assert is_due(lag, since, staleness, steps) is due


def test_the_time_of_a_step_is_the_median_over_the_versions_heard_of() -> None:
    times = StepTime()
    assert times.seconds() is None
    assert times.since(5) == 0.0
    for version, issued in ((3, 1_000), (4, 61_000), (4, 90_000), (6, 181_000), (7, 200_000)):
        times.on_head(version, issued)
    assert times.seconds() == 60.0
    assert times.since(215_000) == 15.0
    assert times.since(100) == 0.0


def test_a_run_that_was_rolled_back_begins_to_count_anew() -> None:
    times = StepTime()
    for version, issued in ((8, 1_000), (9, 2_000), (5, 3_000)):
        times.on_head(version, issued)
    assert times.seconds() is None
    times.on_head(6, 9_000)
    assert times.seconds() == 6.0
