"""Layout of line charts and histograms, in percent of the plot. Pure geometry; templates draw it.

Percent, not pixels: the plot stretches to any width while its text keeps its size, readable on a phone.
x = 0 is left, y = 0 is the top.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from echo2.coordinator.web.formatting import short

MOST_POINTS = 160
"""Most points of a line; a longer one is thinned to means of neighbours."""
_LABEL_GAP = 9.0  # percent: one line of text in a plot of 190 px

Point = tuple[float, float]
R = TypeVar("R")


@dataclass(frozen=True)
class Tick:
    """A mark on an axis, with its label. `value`: value that it marks. `under`: second label below; empty: none."""

    at: float
    label: str
    value: float = 0.0
    under: str = ""


@dataclass(frozen=True)
class Series:
    """A named series of points. `style`: its CSS class. `dots`: mark each point. `faint`: thin, without label."""

    name: str
    style: str
    points: Sequence[Point]
    dots: bool = False
    faint: bool = False


@dataclass(frozen=True)
class PlottedLine:
    """A line on the plot. `path`: an SVG path. `end`: its last point. `label_y`: the height of its label."""

    name: str
    style: str
    path: str
    dots: tuple[Point, ...]
    faint: bool
    end: Point
    label_y: float
    value: str


@dataclass(frozen=True)
class Hint:
    """A column with a tooltip."""

    left: float
    width: float
    text: str


@dataclass(frozen=True)
class Chart:
    """The layout of a line chart. `summary`: its content in one sentence, for screen readers. `band`: an SVG path
    around the bounds of the last line's values; empty: none."""

    id: str
    title: str
    summary: str
    x_name: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[PlottedLine, ...]
    hints: tuple[Hint, ...]
    band: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram. `label`: below the bar. `value`: above the bar. `hint`: its tooltip."""

    left: float
    width: float
    top: float
    height: float
    label: str
    value: str
    hint: str


def percent(share: float) -> str:
    """Format a share: 0.1234 -> "12.3 %"; tenths only below 10 %."""
    value = 100 * share
    return f"{value:.1f} %" if abs(value) < 10 and value not in (0, round(value)) else f"{value:.0f} %"


def nice_ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Return about `wanted` round numbers that enclose [low, high]; the first and last are the axis's ends."""
    span = high - low
    if span <= 1e-8 * max(abs(low), abs(high)):  # equal, but for the rounding of means: labels have 10 digits
        span = abs(high) or 1.0
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, max(last, first + 1) + 1)]


def whole_ticks(last: float, wanted: int = 5) -> list[int]:
    """Return about `wanted` round whole numbers from 0 up to at most `last`."""
    step = max(1.0, nice_ticks(0, max(last, 1), wanted)[1])
    step = math.ceil(step)
    return [step * number for number in range(int(last // step) + 1)]


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Reduce to at most `most` points, each the mean of as many neighbours; keep the last point."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most - 1))
    chunks = [points[start : start + size] for start in range(0, len(points) - 1, size)]
    means = [(sum(x for x, _ in chunk) / len(chunk), sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]
    return [*means, points[-1]]


def pick_records(records: Sequence[R]) -> list[R]:
    """Choose at most `MOST_POINTS` records, evenly spaced, including the first and the last."""
    if len(records) <= MOST_POINTS:
        return list(records)
    return [records[number * (len(records) - 1) // (MOST_POINTS - 1)] for number in range(MOST_POINTS)]


def trailing_mean(points: Sequence[Point], window: int) -> list[Point]:
    """Replace each value by the mean of the last `window` values up to it."""
    result = []
    for index, (x, _) in enumerate(points):
        recent = [y for _, y in points[max(0, index + 1 - window) : index + 1]]
        result.append((x, sum(recent) / len(recent)))
    return result


def line_chart(
    id: str,
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    x_last: float,
    y_ticks: Sequence[float],
    form: str = "number",
    hints: Iterable[tuple[float, str]] = (),
    x_wanted: int = 5,
    band: Sequence[tuple[float, float, float]] = (),
) -> Chart:
    """Lay out `series` over x from 0 to `x_last`. `form`: "percent" or "number". `hints`: (x, text). `x_wanted`: marks
    of the x axis, about. `band`: (x, lowest, highest value) around the last line."""
    x_last = max(x_last, 1.0)
    low, high = y_ticks[0], y_ticks[-1]

    def place(point: Point) -> Point:
        x, y = point
        return round(100 * x / x_last, 2), round(100 * (high - min(max(y, low), high)) / (high - low), 2)

    shown = [(one, [place(point) for point in one.points]) for one in series if one.points]
    ends = apart([places[-1][1] for one, places in shown if not one.faint])
    lines = tuple(_plotted_line(one, places, ends, form) for one, places in shown)
    spoken = [f"{one.name} {_value(one.points[-1][1], form)}" for one in series if one.points and not one.faint]
    return Chart(
        id=id,
        title=title,
        summary=f"{title}: {', '.join(spoken)} at {x_name} {x_last:g}." if spoken else f"{title}: nothing yet.",
        x_name=x_name,
        x_ticks=tuple(Tick(round(100 * x / x_last, 2), _whole(x), x) for x in whole_ticks(x_last, x_wanted)),
        y_ticks=tuple(Tick(place((0, y))[1], _value(y, form)) for y in y_ticks),
        lines=lines,
        hints=_columns([(place((x, low))[0], text) for x, text in hints]),
        band=_path([place((x, top)) for x, _, top in band] + [place((x, bottom)) for x, bottom, _ in reversed(band)]),
    )


def _plotted_line(one: Series, places: list[Point], ends: dict[float, float], form: str) -> PlottedLine:
    return PlottedLine(
        name=one.name,
        style=one.style,
        path=_path(places),
        dots=tuple(places) if one.dots or len(places) == 1 else (),
        faint=one.faint,
        end=places[-1],
        label_y=ends.get(places[-1][1], places[-1][1]),
        value=_value(one.points[-1][1], form),
    )


def _path(places: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places) if places else ""


def _value(value: float, form: str) -> str:
    return percent(value) if form == "percent" else short(value)


def _whole(value: int) -> str:
    return short(value) if value >= 10_000 else str(value)


def apart(heights: Sequence[float]) -> dict[float, float]:
    """Move labels apart so that none covers another; return wanted height -> height."""
    placed: dict[float, float] = {}
    floor = -math.inf
    for height in sorted(set(heights)):
        placed[height] = floor = max(height, floor + _LABEL_GAP)
    excess = max([0.0, *(height - 100 for height in placed.values())])
    return {wanted: height - excess for wanted, height in placed.items()}


def _columns(places: Sequence[tuple[float, str]]) -> tuple[Hint, ...]:
    """Return one column per text; neighbours meet half-way."""
    edges = [0.0, *((a + b) / 2 for (a, _), (b, _) in pairwise(places)), 100.0]
    return tuple(
        Hint(round(left, 2), round(right - left, 2), text)
        for (_, text), left, right in zip(places, edges, edges[1:], strict=False)
    )


def bars(values: Sequence[int], noun: str, unit: str) -> tuple[Bar, ...]:
    """Lay out a histogram over 0, 1, 2 ..., relative to the tallest. `noun`: noun of the counts. `unit`: unit of the
    index."""
    total, tallest = sum(values), max([1, *values])
    width = 100 / max(len(values), 1)
    return tuple(
        Bar(
            left=round(index * width + 0.12 * width, 2),
            width=round(0.76 * width, 2),
            top=round(100 - 100 * value / tallest, 2),
            height=round(100 * value / tallest, 2),
            label=str(index),
            value=percent(value / total) if total else "",
            hint=f"{value} {noun} were {index} {unit} old",
        )
        for index, value in enumerate(values)
    )
