"""The pictures and tables of the learning curves, from the series in a folder."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.curves.plans import CURVES
from benchmarks.curves.series import Point, Series, read_all
from benchmarks.harness import picture
from benchmarks.harness.figure_mark import figure_mark
from benchmarks.harness.picture import Linear

Figure = Callable[[Point], float | None]
FIGURES: Final[dict[str, Figure]] = {
    "sampled": lambda point: point.sampled,
    "greedy": lambda point: point.greedy,
    "exploitability": lambda point: point.exploitability,
}
"""Values that a point may show, by name."""


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
    mark = figure_mark("python -m benchmarks.curves run gcd --seed 1 --folder FOLDER", "gcd-seed1.json")
    (folder / "tables.md").write_text(f"# Learning curves: figures\n\n{mark}\n\n" + "\n".join(tables))


def known(one: Series, figure: Figure) -> list[tuple[int, float]]:
    """Return the versions of a series for which a figure is known, with its values."""
    values = [(point.version, figure(point)) for point in one.points]
    return [(version, value) for version, value in values if value is not None]


def means(some: Sequence[Series], figure: Figure) -> list[tuple[int, float]]:
    """Return the mean over the series at the versions of the first, as far as all go; between two versions of a series
    its values lie on a straight line."""
    every = [known(one, figure) for one in some]
    if not all(every):
        return []
    last = min(one[-1][0] for one in every)
    versions = [version for version, _ in every[0] if version <= last]
    return [(version, statistics.mean(_between(one, version) for one in every)) for version in versions]


def _between(values: Sequence[tuple[int, float]], version: int) -> float:
    earlier = [one for one in values if one[0] <= version] or [values[0]]
    (low, one), (high, other) = earlier[-1], next((one for one in values if one[0] >= version), values[-1])
    return one if high <= low else one + (other - one) * (version - low) / (high - low)


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
            parts.append(picture.polyline(_places(across, up, known(one, figure)), style))
        middle = means(some, figure)
        if middle:
            bold = picture.polyline(_places(across, up, middle), style)
            parts.append(bold.replace("<polyline ", '<polyline style="stroke-width: 5; stroke-opacity: .45" '))
            ends[label] = up.at(middle[-1][1])
    for label, height in picture.apart(ends).items():
        parts.append(picture.text(picture.RIGHT + 8, height + 4, label, "small"))
    heading = CURVES[name].heading
    below = f"held out; {len(some)} seeds and their mean; {sum(one.accepted for one in some):,} groups through nodes"
    return picture.svg(heading, heading, below, parts)


def _places(across: Linear, up: Linear, values: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    return [(across.at(version), up.at(value)) for version, value in values]


def table(name: str, some: Sequence[Series], shown: Sequence[str]) -> str:
    """Return a Markdown table: first and last version of each seed."""
    heads = ["seed", "versions", *shown, "reward of the first and last ten steps", "groups", "refused"]
    rows = [f"## {name}: `{CURVES[name].task}`", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for one in some:
        first, last = one.points[0], one.points[-1]
        cells = [_first_and_last(known(one, FIGURES[label])) for label in shown]
        reward = f"{statistics.mean(one.rewards[:10]):.3f} → {statistics.mean(one.rewards[-10:]):.3f}"
        cells = [str(one.seed), f"{first.version} to {last.version}", *cells, reward, f"{one.accepted:,}"]
        rows.append(f"| {' | '.join([*cells, str(one.refused)])} |")
    return "\n".join(rows) + "\n"


def _first_and_last(values: Sequence[tuple[int, float]]) -> str:
    return f"{values[0][1]:.3f} → {values[-1][1]:.3f}" if values else "–"
