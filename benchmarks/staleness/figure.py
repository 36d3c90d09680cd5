"""The picture and the tables of `benchmarks.staleness`."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.harness import picture
from benchmarks.harness.figure_mark import figure_mark
from benchmarks.harness.picture import Linear
from benchmarks.harness.seeds import shown, standard_error

Curve = Mapping[int, Sequence[float]]
"""By age, the accuracy of each seed."""
Curves = Mapping[tuple[str, float], Curve]
"""By objective and rate."""
_STYLES: Final = ("c1", "c4", "c3")
_GAP: Final = 40
"""Pixels between two panels."""


def drawing(curves: Curves) -> str:
    """Return the SVG: a panel per objective, a line per rate, bars of one standard error."""
    objectives = list(dict.fromkeys(objective for objective, _ in curves))
    rates = sorted({rate for _, rate in curves})
    last = max(age for curve in curves.values() for age in curve)
    up = Linear(0, 1, picture.BOTTOM, picture.TOP + 20)
    width = (picture.WIDTH - 20 - picture.LEFT - _GAP * (len(objectives) - 1)) / len(objectives)
    parts = list[str]()
    for panel, objective in enumerate(objectives):
        start = picture.LEFT + panel * (width + _GAP)
        across = Linear(0, last, start, start + width)
        parts += _panel(across, up, objective)
        for rate, style in zip(rates, _STYLES, strict=False):
            curve = curves.get((objective, rate), {})
            parts += _curve(across, up, curve, style)
    for place, (rate, style) in enumerate(zip(rates, _STYLES, strict=False)):
        x = picture.LEFT + 150 * place
        parts += [
            picture.polyline([(x, picture.HEIGHT - 12), (x + 24, picture.HEIGHT - 12)], style),
            picture.text(x + 30, picture.HEIGHT - 8, f"rate {rate:.2g} x 3e-4", "small"),
        ]
    heading = "Accuracy after equal rollouts, by their age in steps"
    return picture.svg(heading, heading, "held out, sampled; means of the seeds, bars of one standard error", parts)


def _panel(across: Linear, up: Linear, objective: str) -> list[str]:
    marks = [picture.text((across.start + across.end) / 2, picture.TOP + 8, objective, "small", "middle")]
    for tick in range(6):
        y = up.at(tick / 5)
        marks.append(f'<path class="grid" d="M{across.start:.1f} {y}H{across.end:.1f}"/>')
        if across.start == picture.LEFT:
            marks.append(picture.text(across.start - 8, y + 4, f"{tick / 5:g}", "small", "end"))
    return marks + [
        picture.text(across.at(age), picture.BOTTOM + 18, f"{age}", "small", "middle") for age in (0, 4, 8, 16)
    ]


def _curve(across: Linear, up: Linear, curve: Curve, style: str) -> list[str]:
    means = [(age, statistics.fmean(values), standard_error(values)) for age, values in sorted(curve.items())]
    parts = [picture.polyline([(across.at(age), up.at(mean)) for age, mean, _ in means], style)] if means else []
    for age, mean, error in means:
        x, low, high = across.at(age), up.at(max(0.0, mean - error)), up.at(min(1.0, mean + error))
        parts.append(f'<path class="{style}" d="M{x} {low}V{high}"/>')
    return parts


def markdown(curves: Curves, before: float) -> str:
    """Return the tables: a table per objective, and the cells in the order of S times the rate. `before`: the accuracy
    before learning."""
    rows = [
        "# Staleness: figures", "",
        f"Sampled accuracy on held-out prompts after 40 steps of 256 rollouts ({before:.3f} before), mean and standard "
        "error of the seeds.", "",
        figure_mark("python -m benchmarks.staleness run", "staleness.json"), "",
    ]  # fmt: skip
    for objective in dict.fromkeys(objective for objective, _ in curves):
        rates = sorted({rate for name, rate in curves if name == objective})
        rows += [f"## {objective}", "", f"| S | {' | '.join(f'rate {rate:.2g} x 3e-4' for rate in rates)} |"]
        rows.append("|---" * (len(rates) + 1) + "|")
        ages = sorted({age for (name, _), curve in curves.items() if name == objective for age in curve})
        for age in ages:
            cells = [shown(curves.get((objective, rate), {}).get(age, [])) for rate in rates]
            rows.append(f"| {age} | {' | '.join(cells)} |")
        rows.append("")
    return "\n".join(rows)
