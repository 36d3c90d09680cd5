"""The pictures and tables of the learning curves, from the series in a folder."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.curves.plans import CURVES
from benchmarks.curves.series import Point, Series, read_all, versions_of
from benchmarks.harness import picture
from benchmarks.harness.picture import Linear

Figure = Callable[[Point], float | None]
FIGURES: Final[dict[str, Figure]] = {
    "sampled": lambda point: point.sampled,
    "greedy": lambda point: point.greedy,
    "exploitability": lambda point: point.exploitability,
}
"""What a point may show, by name."""


def write(folder: Path) -> None:
    """Write CURVE.svg for each curve that has series, and tables.md."""
    every, tables = read_all(folder), list[str]()
    for name in sorted({one.curve for one in every}):
        some = [one for one in every if one.curve == name]
        shown = [
            label for label, figure in FIGURES.items() if any(figure(point) is not None for point in some[0].points)
        ]
        (folder / f"{name}.svg").write_text(drawing(name, some, shown))
        tables.append(table(name, some, shown))
    (folder / "tables.md").write_text("# Learning curves: figures\n\n" + "\n".join(tables))


def means(some: Sequence[Series], figure: Figure) -> dict[int, float]:
    """Return the mean over the series of each version that all of them evaluated and measured."""
    found = dict[int, float]()
    for version in versions_of(some):
        values = [figure(point) for one in some for point in one.points if point.version == version]
        known = [value for value in values if value is not None]
        if len(known) == len(some):
            found[version] = statistics.mean(known)
    return found


def drawing(name: str, some: Sequence[Series], shown: Sequence[str]) -> str:
    """Return the SVG of a curve: a thin line per seed, a thick one for their mean."""
    last = max(point.version for one in some for point in one.points)
    across, up = Linear(0, max(1, last), picture.LEFT, picture.RIGHT), Linear(0, 1, picture.BOTTOM, picture.TOP)
    columns = {tick: f"{tick:g}" for tick in across.ticks()}
    parts = picture.grid(across, up, columns, {tick / 5: f"{tick / 5:g}" for tick in range(6)}, "version")
    ends = dict[str, float]()
    for label, style in zip(shown, ("c4", "c3", "c1"), strict=False):
        figure = FIGURES[label]
        for one in some:
            parts.append(picture.polyline(_places(across, up, [(p.version, figure(p)) for p in one.points]), style))
        middle = means(some, figure)
        if middle:
            bold = picture.polyline(_places(across, up, list(middle.items())), style)
            parts.append(bold.replace("<polyline ", '<polyline style="stroke-width: 5; stroke-opacity: .45" '))
            ends[label] = up.at(list(middle.values())[-1])
    for label, height in picture.apart(ends).items():
        parts.append(picture.text(picture.RIGHT + 8, height + 4, label, "small"))
    heading = CURVES[name].heading
    below = f"held out; {len(some)} seeds and their mean; {sum(one.accepted for one in some):,} groups through nodes"
    return picture.svg(heading, heading, below, parts)


def _places(across: Linear, up: Linear, values: Sequence[tuple[int, float | None]]) -> list[tuple[float, float]]:
    return [(across.at(version), up.at(value)) for version, value in values if value is not None]


def table(name: str, some: Sequence[Series], shown: Sequence[str]) -> str:
    """Return a Markdown table: first and last version of each seed."""
    heads = ["seed", "versions", *shown, "reward of the first and last ten steps", "groups", "refused"]
    rows = [f"## {name}: `{CURVES[name].task}`", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for one in some:
        first, last = one.points[0], one.points[-1]
        cells = [f"{_figure(FIGURES[label](first))} → {_figure(FIGURES[label](last))}" for label in shown]
        reward = f"{statistics.mean(one.rewards[:10]):.3f} → {statistics.mean(one.rewards[-10:]):.3f}"
        cells = [str(one.seed), f"{first.version} to {last.version}", *cells, reward, f"{one.accepted:,}"]
        rows.append(f"| {' | '.join([*cells, str(one.refused)])} |")
    return "\n".join(rows) + "\n"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
