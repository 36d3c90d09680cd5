"""Averages are smoothed, and overlapping intervals count once."""

import pytest

from echo2.runtime import quantiles as statistics


def test_measurements_are_smoothed() -> None:
    assert statistics.moving_average(None, 5.0) == 5.0
    assert statistics.moving_average(5.0, 10.0) == 6.0
    assert statistics.quantile([3, 1, 2], 0.5) == 2
    assert statistics.quantile(range(1, 11), 0.9) == 9
    assert statistics.quantile([7], 0.9) == 7


@pytest.mark.parametrize(
    ("intervals", "length"), [([], 0), ([(0, 5), (3, 8)], 8), ([(5, 6), (0, 1)], 2), ([(0, 9), (2, 3)], 9)]
)
def test_parallel_leases_count_once(intervals: list[tuple[int, int]], length: int) -> None:
    assert statistics.union(intervals) == length


def test_the_bounds_of_a_share_are_wilsons() -> None:
    """The worked example of Newcombe, Two-sided confidence intervals for the single proportion, 1998: 81 of 263."""
    low, high = statistics.share_bounds(81 / 263, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert statistics.share_bounds(0.0, 20)[0] == 0.0
    assert statistics.share_bounds(1.0, 20)[1] == 1.0
    assert statistics.share_bounds(0.5, 0) == (0.0, 1.0)
