"""Layout of the curves of a run over its steps: held-out accuracy and reward, and six small ones. Pure.

Rules
1. An axis fits the data: it ends at the last step, and its values are those that occur. Where few values are far above
   the others (`_OUTLIER` times their 98th percentile), the axis ends below them, and they stand at its top.
2. Below a mark of a step stands the time from the first step to it.
3. Tokens per second, and the share of time outside steps, follow from the times of neighbouring steps, so a step after
   a pause shows it. Outside steps the learner also exports and publishes: it is idle for less than that.
4. The band beside the sampled share says what the policy may solve of all prompts of this kind, as far as so many
   prompts with one answer each show it.
"""

import dataclasses
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

from echo2.coordinator.metrics.views import RunState, StepPoint
from echo2.coordinator.web import charts
from echo2.coordinator.web.charts import Chart, Point, Series
from echo2.coordinator.web.formatting import duration
from echo2.runtime.quantiles import quantile, share_bounds

SMALL_CURVES: Final = (
    ("length", "Length of answers, tokens"),
    ("entropy", "Entropy, nats"),
    ("kl", "KL to the generating version, nats"),
    ("grad_norm", "Gradient norm"),
    ("learning_rate", "Learning rate"),
)
"""Metric of a step (coordinator/learner/objective/step_metrics.py) -> title of its curve."""
_SMALL_POINTS: Final = 80
_SMALL_TICKS: Final = 3
_SMOOTHED_STEPS: Final = 5
_OUTLIER: Final = 4.0
Times = Sequence[tuple[float, int]]
"""(step or version, ms) of the points of a curve, in order."""


def accuracy_chart(state: RunState) -> Chart:
    """Lay out held-out exact match over versions, and the 95 % confidence interval of the sampled one (rule 4)."""
    shown = charts.pick_records(state.evaluations)
    sampled = [(float(one.version), one.sampled) for one in shown]
    greedy = [(float(one.version), one.greedy) for one in shown]
    band = [(float(one.version), *share_bounds(one.sampled, one.prompts)) for one in shown]
    hints = [
        (x, f"version {one.version}: sampled {charts.percent(one.sampled)} (95 %: {charts.percent(low)} to "
            f"{charts.percent(high)}), greedy {charts.percent(one.greedy)} of {one.prompts} prompts")
        for one, (x, low, high) in zip(shown, band, strict=True)
    ]  # fmt: skip
    chart = charts.line_chart(
        "accuracy",
        "Held-out accuracy",
        [Series("greedy", "second", greedy, dots=True), Series("sampled", "first", sampled, dots=True)],
        x_name="version",
        x_last=max([x for x, _ in sampled], default=1.0),
        y_ticks=_fit([*(y for _, y in greedy), *(y for _, low, high in band for y in (low, high))], wanted=4, most=1.0),
        form="percent",
        hints=hints,
        band=band,
    )
    return _with_times(chart, [(float(one.version), one.at) for one in state.evaluations])


def reward_chart(state: RunState) -> Chart:
    """Lay out the reward by step: raw values, faint, and their trailing mean."""
    raw = charts.thin([(float(one.step), one.reward) for one in state.steps])
    chart = charts.line_chart(
        "reward",
        "Reward",
        [Series("each step", "first", raw, faint=True),
         Series(f"mean of {_SMOOTHED_STEPS} steps", "first", charts.trailing_mean(raw, _SMOOTHED_STEPS))],
        x_name="step",
        x_last=_last(raw),
        y_ticks=_fit([y for _, y in raw], wanted=4),
        hints=[(x, f"step {x:.0f}: reward {y:.3f}") for x, y in raw],
    )  # fmt: skip
    return _with_times(chart, _times(state))


def learned_chart(state: RunState, steps: Collection[int]) -> Chart:
    """Lay out the reward by step, with a dot at each of `steps`."""
    raw = [(float(one.step), one.reward) for one in state.steps]
    chosen = charts.pick_records([point for point in raw if point[0] in steps])
    chart = charts.line_chart(
        "learned",
        "Reward, and the steps that learned from this node",
        [Series("reward of the run", "first", charts.thin(raw, _SMALL_POINTS), faint=True),
         Series("steps that learned from this node", "second", chosen[-_SMALL_POINTS:], dots=True)],
        x_name="step",
        x_last=_last(raw),
        y_ticks=_fit([y for _, y in raw], wanted=4),
    )  # fmt: skip
    return _with_times(chart, _times(state))


def small_charts(state: RunState) -> list[Chart]:
    """Lay out the small curves, those of `SMALL_CURVES` and the learner's pace; none before the first step."""
    if not state.steps:
        return []
    drawn = [
        _small(name, title, [(float(one.step), one.metrics[name]) for one in state.steps if name in one.metrics])
        for name, title in SMALL_CURVES
    ]
    return [_with_times(chart, _times(state)) for chart in (*drawn, _pace(state.steps))]


def _small(name: str, title: str, points: Sequence[Point], series: str = "now") -> Chart:
    shown = charts.thin(points, _SMALL_POINTS)
    return charts.line_chart(
        name,
        title,
        [Series(series, "first", shown)],
        x_name="step",
        x_last=_last(shown),
        x_wanted=_SMALL_TICKS,
        y_ticks=_fit([y for _, y in shown], wanted=_SMALL_TICKS),
    )


def _pace(steps: Sequence[StepPoint]) -> Chart:
    """Lay out tokens per second, and behind them the share outside steps, from 0 to 100 % of the height."""
    tokens, outside = list[Point](), list[Point]()
    for before, one in pairwise(steps):
        seconds = (one.at - before.at) / 1000 / max(1, one.step - before.step)
        if seconds > 0 and "tokens" in one.metrics:
            tokens.append((float(one.step), one.metrics["tokens"] / seconds))
            outside.append((float(one.step), min(1.0, max(0.0, 1 - one.seconds / seconds))))
    chart = _small("pace", "Tokens per second, time outside steps", tokens, "tokens/s")
    behind = charts.line_chart(
        "outside", "Outside", [Series("outside steps, 0 to 100 %", "second", charts.thin(outside, _SMALL_POINTS))],
        x_name="step", x_last=_last(tokens), y_ticks=(0, 1), form="percent",
    )  # fmt: skip
    if not outside:
        return chart
    heights = charts.apart([plotted.end[1] for plotted in (*behind.lines, *chart.lines)])
    lines = [dataclasses.replace(one, label_y=heights[one.end[1]]) for one in (*behind.lines, *chart.lines)]
    summary = f"{chart.summary} {charts.percent(outside[-1][1])} of that time is outside steps."
    return dataclasses.replace(chart, lines=tuple(lines), summary=summary)


def _fit(values: Sequence[float], *, wanted: int, most: float | None = None) -> list[float]:
    """Return the marks of an axis that fits the values (rule 1). `most`: highest mark; None: any."""
    if not values:
        return [0.0, most or 1.0]
    high, usual = max(values), quantile(values, 0.98)
    if high > _OUTLIER * usual > 0:
        high = 2 * usual
    ticks = charts.nice_ticks(min(values), high, wanted)
    if most is not None and ticks[-1] > most:
        return [tick for tick in ticks if tick < most] + [most] if ticks[0] < most else [0.0, most]
    return ticks


def _last(points: Sequence[Point]) -> float:
    return points[-1][0] if points else 1.0


def _times(state: RunState) -> Times:
    return [(float(one.step), one.at) for one in state.steps]


def _with_times(chart: Chart, times: Times) -> Chart:
    """Put below each mark of the x axis its time (rule 2)."""
    if not times:
        return chart
    ticks = [dataclasses.replace(tick, under=_since(times, tick.value)) for tick in chart.x_ticks]
    return dataclasses.replace(chart, x_ticks=tuple(ticks), x_name=f"{chart.x_name}, and time since the first")


def _since(times: Times, x: float) -> str:
    """Return the time from the first point to `x`, between two points in proportion."""
    after = next((number for number, (place, _) in enumerate(times) if place >= x), len(times) - 1)
    (left, began), (right, ended) = times[max(0, after - 1)], times[after]
    share = min(1.0, max(0.0, (x - left) / (right - left))) if right > left else 0.0
    seconds = max(0.0, began + share * (ended - began) - times[0][1]) / 1000
    return " ".join(duration(seconds).split()[:2]) if seconds else "0 s"
