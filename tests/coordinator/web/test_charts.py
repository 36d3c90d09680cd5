"""Layout of line charts and histograms."""

import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.web import page
from echo2.coordinator.web.charts import Series, bars, line_chart, nice_ticks, thin, trailing_mean, whole_ticks
from tests.support import pictures

reasonable = st.floats(-1e6, 1e6, allow_nan=False)


@given(reasonable, reasonable)
def test_ticks_enclose_the_range_in_even_round_steps(a: float, b: float) -> None:
    low, high = sorted((a, b))
    ticks = nice_ticks(low, high)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8


@given(st.integers(0, 10**6))
def test_whole_ticks_are_few_and_within(last: int) -> None:
    ticks = whole_ticks(last)
    assert ticks[0] == 0
    assert ticks[-1] <= max(last, 1)
    assert len(ticks) <= 8


def test_points_are_placed_by_their_values() -> None:
    chart = line_chart(
        "c",
        "C",
        [Series("a", "first", [(0, 0.0), (5, 0.5), (10, 1.0)], dots=True)],
        x_name="x",
        x_last=10,
        y_ticks=(0, 1),
    )
    assert chart.lines[0].dots == ((0, 100), (50, 50), (100, 0))
    assert chart.lines[0].path == "M0 100L50 50L100 0"
    assert chart.summary == "C: a 1 at x 10."


def test_a_value_beyond_the_axis_stays_on_the_plot() -> None:
    chart = line_chart("c", "C", [Series("a", "first", [(0, -3.0), (1, 7.0)])], x_name="x", x_last=1, y_ticks=(0, 1))
    assert chart.lines[0].path == "M0 100L100 0"


def test_a_single_point_is_a_dot_since_a_line_of_one_point_is_invisible() -> None:
    chart = line_chart("c", "C", [Series("a", "first", [(0, 0.5)])], x_name="x", x_last=1, y_ticks=(0, 1))
    assert chart.lines[0].dots == ((0, 50),)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_labels_never_cover_each_other_nor_leave_the_plot(values: list[float]) -> None:
    series = [Series(f"s{n}", "first", [(1, value)]) for n, value in enumerate(values)]
    chart = line_chart("c", "C", series, x_name="x", x_last=1, y_ticks=(0, 1))
    heights = sorted({plotted.label_y for plotted in chart.lines})
    assert heights[-1] <= 100.001
    assert all(b - a > 8.9 for a, b in pairwise(heights))


def test_a_chart_of_nothing_has_axes_and_no_line() -> None:
    chart = line_chart("c", "C", [Series("a", "first", [])], x_name="x", x_last=0, y_ticks=(0, 1))
    assert chart.lines == ()
    assert len(chart.y_ticks) == 2
    assert chart.summary == "C: nothing yet."


def test_hints_cover_the_plot_without_a_gap() -> None:
    chart = line_chart("c", "C", [], x_name="x", x_last=10, y_ticks=(0, 1), hints=[(1, "one"), (2, "two"), (9, "nine")])
    edges = [(hint.left, hint.left + hint.width) for hint in chart.hints]
    assert edges == [(0, 15), (15, 55), (55, 100)]


@given(st.lists(st.tuples(st.integers(0, 9999), st.floats(0, 1)), min_size=1, max_size=900))
def test_thinning_keeps_the_last_point_and_the_range(points: list[tuple[float, float]]) -> None:
    thinned = thin(points, 50)
    assert len(thinned) <= 50
    assert thinned[-1] == points[-1]
    values = [y for _, y in points]
    assert all(min(values) - 1e-9 <= y <= max(values) + 1e-9 for _, y in thinned)


def test_a_trailing_mean_looks_back_only() -> None:
    assert trailing_mean([(1, 0.0), (2, 4.0), (3, 8.0)], 2) == [(1, 0.0), (2, 2.0), (3, 6.0)]


def test_bars_are_as_high_as_their_share_of_the_tallest() -> None:
    assert [bar.height for bar in bars([2, 4, 0], "groups", "steps")] == [50, 100, 0]
    assert [bar.value for bar in bars([1, 3], "groups", "steps")] == ["25 %", "75 %"]
    assert [bar.value for bar in bars([0, 0], "groups", "steps")] == ["", ""]


def test_a_band_goes_along_its_highest_values_and_back_along_its_lowest() -> None:
    chart = line_chart(
        "c", "C", [Series("a", "first", [(0, 0.5), (1, 0.5)])], x_name="x", x_last=1, y_ticks=(0, 1),
        band=[(0, 0.25, 0.75), (1, 0.5, 1.0)],
    )  # fmt: skip
    assert chart.band == "M0 25L100 0L100 50L0 75"
    assert line_chart("c", "C", [], x_name="x", x_last=1, y_ticks=(0, 1)).band == ""


@pytest.mark.parametrize("steps", [159, 500, 1_000, 3_000])
def test_values_that_differ_by_the_rounding_of_a_mean_are_drawn(steps: int) -> None:
    """Means of neighbours of one value differ in their last bit: an axis of no height was drawn, and no page."""
    state = msgspec.structs.replace(pictures.BUSY, steps=pictures.steps(steps))
    assert page.page(state)
    for value in (3e-4, 0.1, 4567.8, 1e-12, -3e-4):
        ticks = nice_ticks(value, math.nextafter(value, math.inf))
        assert ticks[0] <= value <= ticks[-1]
        assert ticks[0] < ticks[-1]
