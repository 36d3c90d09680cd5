"""Draw groups of bars: means over the seeds, with bars of one standard error."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.harness import picture
from benchmarks.harness.picture import Linear
from benchmarks.harness.seeds import standard_error

COLOURS: Final = ("#8c959f", "#1a7f37", "#bf8700", "#8250df")

Groups = Mapping[str, Mapping[str, Sequence[float]]]
"""By group and bar, the values of the seeds; every group has the same bars."""


def drawing(heading: str, below: str, groups: Groups, most: float) -> str:
    """Return the SVG. `most`: the upper end of the axis."""
    names = list(next(iter(groups.values())))
    up = Linear(0, most, picture.BOTTOM, picture.TOP + 20)
    wide = (picture.WIDTH - picture.LEFT - 20) / (len(groups) * (len(names) + 1) - 1)
    parts = list[str]()
    for tick in range(6):
        y = up.at(most * tick / 5)
        parts.append(f'<path class="grid" d="M{picture.LEFT} {y}H{picture.WIDTH - 20}"/>')
        parts.append(picture.text(picture.LEFT - 8, y + 4, f"{most * tick / 5:g}", "small", "end"))
    for number, (group, by_name) in enumerate(groups.items()):
        left = picture.LEFT + number * (len(names) + 1) * wide
        parts.append(picture.text(left + len(names) * wide / 2, picture.BOTTOM + 20, group, "", "middle"))
        for place, values in enumerate(by_name.values()):
            parts += _bar(left + (place + 0.1) * wide, 0.8 * wide, up, values, COLOURS[place])
    for place, name in enumerate(names):
        x = picture.LEFT + 150 * place
        parts.append(f'<rect x="{x}" y="{picture.HEIGHT - 22}" width="12" height="12" fill="{COLOURS[place]}"/>')
        parts.append(picture.text(x + 18, picture.HEIGHT - 12, name, "small"))
    return picture.svg(heading, heading, below, parts)


def _bar(x: float, wide: float, up: Linear, values: Sequence[float], colour: str) -> list[str]:
    mean, error = statistics.fmean(values), standard_error(values)
    top, middle = up.at(mean), x + wide / 2
    height = up.at(0) - top
    return [
        f'<rect x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{height:.1f}" fill="{colour}"/>',
        f'<path d="M{middle:.1f} {up.at(max(0.0, mean - error))}V{up.at(mean + error)}" stroke="#1f2328" '
        'stroke-width="2"/>',
    ]
