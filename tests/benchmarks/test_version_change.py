"""The cost of a change of version, computed from an engine's rates."""

import pytest

from benchmarks.version_change import change_cost, rows_left


def test_of_completions_of_one_length_a_row_is_met_anywhere_in_it() -> None:
    assert rows_left([4], 8) == [8, 6, 4, 2]


def test_long_completions_are_met_more_often_than_short_ones() -> None:
    assert rows_left([1, 3], 4) == [4, 2, 1]


def test_a_change_costs_nothing_where_a_row_costs_the_same_among_any_number() -> None:
    assert change_cost([8, 4, 2], {4: 10.0, 8: 10.0}, 8) == pytest.approx((0, 0))


def test_with_one_copy_empty_places_are_lost_and_with_two_whole_steps() -> None:
    """A step takes 1 s, of 4 rows or of 8: rates of 4 and 8 tokens per second."""
    cost = change_cost([8, 4], {4: 4.0, 8: 8.0}, 8)
    assert cost.one_copy == pytest.approx(4)
    assert cost.two_copies == pytest.approx(8)
