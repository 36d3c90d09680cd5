"""The curves of a run: which there are, axes that fit the data, times below the steps."""

import re

import msgspec
import pytest

from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.web import curves
from echo2.coordinator.web.charts import Chart
from tests.support import pictures


def measured(**metrics: list[float]) -> RunState:
    """Return a run whose steps have these metrics, a second apart."""
    points = pictures.steps(len(next(iter(metrics.values()))))
    shown = [{name: values[place] for name, values in metrics.items()} for place in range(len(points))]
    steps = [
        msgspec.structs.replace(point, at=1_000 * point.step, seconds=0.75, metrics=one)
        for point, one in zip(points, shown, strict=True)
    ]
    return msgspec.structs.replace(pictures.BUSY, steps=steps)


def small(state: RunState, name: str) -> Chart:
    (chart,) = [one for one in curves.small_charts(state) if one.id == name]
    return chart


def heights(chart: Chart, place: int = -1) -> list[float]:
    """Return the heights of a line's points, from 0 at the top to 100."""
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", chart.lines[place].path)]


def test_there_are_eight_curves_each_with_steps_and_the_time_below_them() -> None:
    charts = [curves.accuracy_chart(pictures.BUSY), curves.reward_chart(pictures.BUSY)]
    charts += curves.small_charts(pictures.BUSY)
    names = ["accuracy", "reward", "length", "entropy", "kl", "grad_norm", "learning_rate", "pace"]
    assert [chart.id for chart in charts] == names
    for chart in charts:
        assert chart.lines, chart.id
        assert chart.x_ticks[-1].under, chart.id
        assert chart.x_name in ("step, and time since the first", "version, and time since the first")
        assert all(0 <= y <= 100 for place in range(len(chart.lines)) for y in heights(chart, place)), chart.id


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.31, 0.34, 0.39], ["0.3", "0.35", "0.4"]),
        ([0.0, 0.0, 0.0], ["0", "0.5"]),
        ([7e-6, 7e-6], ["5e-06", "7.5e-06"]),
        ([-2.0, 1.0], ["-2", "-1", "0", "1"]),
    ],
)
def test_the_axis_of_values_ends_at_round_numbers_around_them(values: list[float], labels: list[str]) -> None:
    ticks = [tick.label for tick in small(measured(entropy=values), "entropy").y_ticks]
    assert (ticks[0], ticks[-1]) == (labels[0], labels[-1])


def test_a_value_far_above_all_others_stands_at_the_top_and_does_not_flatten_them() -> None:
    norms = [0.4 + 0.01 * (number % 7) for number in range(200)]
    calm = heights(small(measured(grad_norm=norms), "grad_norm"))
    norms[50] = 5e6
    spiked = small(measured(grad_norm=norms), "grad_norm")
    assert float(spiked.y_ticks[-1].label) < 2
    assert min(heights(spiked)) == 0
    assert max(heights(spiked)[-20:]) - min(heights(spiked)[-20:]) > 1, "the others are still apart"
    assert len(calm) == len(heights(spiked))


def test_an_axis_of_shares_ends_at_all() -> None:
    exams = [msgspec.structs.replace(one, sampled=1.0, greedy=1.0) for one in pictures.BUSY.evaluations]
    chart = curves.accuracy_chart(msgspec.structs.replace(pictures.BUSY, evaluations=exams))
    assert chart.y_ticks[-1].label == "100 %"
    assert chart.band


def test_the_time_below_a_step_follows_a_pause_and_the_axis_ends_at_the_last_step() -> None:
    state = measured(entropy=[0.3] * 20)
    later = [msgspec.structs.replace(one, at=one.at + 3_600_000 * (one.step > 10)) for one in state.steps]
    ticks = small(msgspec.structs.replace(state, steps=later), "entropy").x_ticks
    under = {int(tick.value): tick.under for tick in ticks}
    assert under[10] == "9.0 s"
    assert under[20] == "1 h"
    assert ticks[-1].at == 100


def test_pace_is_tokens_by_the_time_between_steps_and_the_share_outside_them() -> None:
    chart = small(measured(tokens=[500.0] * 10), "pace")
    outside, pace = chart.lines
    assert (pace.name, pace.value) == ("tokens/s", "500")
    assert (outside.name, outside.value) == ("outside steps, 0 to 100 %", "25 %")
    assert "25 % of that time is outside steps" in chart.summary


def test_a_metric_that_no_step_has_is_an_empty_chart_and_no_step_is_none() -> None:
    assert not small(measured(tokens=[1.0, 2.0]), "kl").lines
    assert curves.small_charts(pictures.EMPTY) == []


def test_the_steps_that_learned_from_a_node_are_dots() -> None:
    chart = curves.learned_chart(pictures.BUSY, {3, 20})
    assert len(chart.lines[-1].dots) == 2
