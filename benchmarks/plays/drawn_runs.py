"""Draw compared runs as an SVG: the learner's idle share, the age of its groups, and active nodes, over time."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

from benchmarks.plays.comparison import Compared
from benchmarks.plays.run_scene import StepRecord

WIDTH, PANEL, GAP, LEFT, RIGHT = 860, 150, 46, 60, 130
COLOURS: Final = ("#1f6feb", "#d1242f", "#8250df", "#1a7f37", "#9a6700")
MEAN_OF: Final = 5
"""Steps over which each value is a mean."""

Point = tuple[float, float]


class _Panel(NamedTuple):
    title: str
    value: Callable[[Sequence[StepRecord], float], float]


_PANELS: Final = (
    _Panel("the learner's idle share", lambda some, span: sum(one.waited for one in some) / span if span else 0.0),
    _Panel("mean age of the groups learned, steps", lambda some, span: sum(one.age for one in some) / len(some)),
    _Panel("active nodes", lambda some, span: sum(one.active for one in some) / len(some)),
)


def draw(rows: Sequence[Compared], seconds: float) -> str:
    """Return the SVG of the first seed of each row."""
    height = len(_PANELS) * (PANEL + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, panel in enumerate(_PANELS):
        parts += _panel(panel, rows, seconds, GAP + number * (PANEL + GAP))
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: _Panel, rows: Sequence[Compared], seconds: float, top: int) -> list[str]:
    series = [(row.name, _points(panel, row.records)) for row in rows]
    high = max([value for _, points in series for _, value in points] + [1e-9]) * 1.05
    bottom = top + PANEL

    def place(point: Point) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * point[0] / seconds
        return f"{x:.1f},{bottom - PANEL * point[1] / high:.1f}"

    parts = [
        f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{panel.title}</text>',
        f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>',
        f'<text x="{LEFT - 6}" y="{top + 4}" text-anchor="end">{high:.3g}</text>',
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{WIDTH - RIGHT}" y="{bottom + 16}" text-anchor="end">{seconds / 60:g} min</text>',
    ]
    for number, (name, points) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(place(point) for point in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        label_y = top + 12 + 16 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{label_y}" fill="{colour}">{escape(name)}</text>')
    return parts


def _points(panel: _Panel, records: Sequence[StepRecord]) -> list[Point]:
    points = list[Point]()
    for end in range(1, len(records) + 1):
        some = records[max(0, end - MEAN_OF) : end]
        first = some[0].at - some[0].waited
        points.append((some[-1].at, panel.value(some, some[-1].at - first)))
    return points
