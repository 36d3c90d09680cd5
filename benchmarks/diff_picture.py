"""The picture of `benchmarks.diff`: bytes of a version against the learning rate, both axes logarithmic, as an SVG.

A point is the mean over a stream's versions, scaled to a model of `MODEL` bytes, so that streams of a part and of the
whole of a model share one axis. Beside each line stand its name and its bytes at the highest rate. Colours follow the
viewer's scheme, light or dark.
"""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from benchmarks.diff_sizes import Sizes
from benchmarks.diff_streams import Stream
from p2p.errors import LocalFault

MODEL: Final = 269_030_016
"""Bytes of SmolLM2-135M in bfloat16."""
WIDTH, HEIGHT = 760, 470
LEFT, RIGHT, TOP, BOTTOM = 76, 530, 58, 404
LABEL_GAP: Final = 17.0


class Curve(NamedTuple):
    """A codec: its name, its colour class, and its bytes."""

    name: str
    style: str
    bytes_of: Callable[[Sizes], float]


CURVES: Final = (
    Curve("full", "c1", lambda found: found.full),
    Curve("full, zstd-1", "c2", lambda found: found.full_zstd),
    Curve("int32 gaps + zstd-1", "c3", lambda found: found.gaps),
    Curve("XOR + zstd-1", "c4", lambda found: found.xor),
    Curve("ours", "c5", lambda found: found.ours),
    Curve("entropy given exponent", "c6", lambda found: found.bound),
)
STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
.title { font-size: 15px; font-weight: 600 } .grid { stroke: #8b949e; stroke-opacity: .25 }
polyline { fill: none; stroke-width: 2 } .c5 { stroke-width: 4 } .c6 { stroke-dasharray: 3 4 }
.c1 { stroke: #8c959f } .c2 { stroke: #6e7781 } .c3 { stroke: #bf8700 } .c4 { stroke: #8250df }
.c5 { stroke: #1a7f37 } .c6 { stroke: #1f2328 }
circle { stroke-width: 2; fill: #fff } circle.c6 { stroke-dasharray: none }
.ours { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } circle { fill: #0d1117 }
  .c3 { stroke: #d29922 } .c4 { stroke: #a371f7 } .c5 { stroke: #3fb950 } .c6 { stroke: #e6edf3 }
}
"""


class Point(NamedTuple):
    rate: float
    nbytes: float


def draw(measured: Sequence[tuple[Stream, Sizes]]) -> str:
    """The SVG. Raises `LocalFault` unless the names of the streams tell at least two learning rates."""
    known = [(stream.rate, found) for stream, found in measured if stream.rate is not None]
    curves = {
        one: sorted(Point(rate, MODEL * one.bytes_of(found) / found.full) for rate, found in known) for one in CURVES
    }
    rates = sorted({rate for rate, _ in known})
    if len(rates) < 2:
        raise LocalFault("a picture needs streams of two learning rates or more, told by their names (lr2e-06)")
    values = [point.nbytes for points in curves.values() for point in points]
    across = Axis(rates[0] / 1.15, rates[-1] * 1.15, LEFT, RIGHT)
    up = Axis(min(values) / 1.5, max(values) * 1.4, BOTTOM, TOP)
    return "\n".join([*_head(), *_grid(across, up, rates), *_lines(curves, across, up), "</svg>", ""])


class Axis(NamedTuple):
    """Logarithmic, from `low` at pixel `start` to `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of every decade."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))
        every = (factor * 10.0**decade for decade in decades for factor in (1, 2, 5))
        return [value for value in every if self.low <= value <= self.high]


def _head() -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Bytes of a version against the learning rate</title>",
        f"<style>{STYLE}</style>",
        _text(LEFT, 22, "Bytes from one version to the next, by learning rate", "title"),
        _text(LEFT, 41, "SmolLM2-135M under GRPO (AdamW, bf16 export each step); full: 269 MB", "small"),
    ]


def _grid(across: Axis, up: Axis, rates: Sequence[float]) -> list[str]:
    found = []
    for value in up.ticks():
        y = up.at(value)
        found += [
            f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>',
            _text(LEFT - 8, y + 4, _amount(value), "small", "end"),
        ]
    for rate in rates:
        x = across.at(rate)
        found.append(f'<path class="grid" d="M{x} {TOP}V{BOTTOM}"/>')
        found.append(_text(x, BOTTOM + 20, f"{rate:.0e}".replace("e-0", "e-"), "small", "middle"))
    return [*found, _text((LEFT + RIGHT) / 2, BOTTOM + 42, "learning rate", "small", "middle")]


def _lines(curves: dict[Curve, list[Point]], across: Axis, up: Axis) -> list[str]:
    found = []
    ends = {one: up.at(points[-1].nbytes) for one, points in curves.items()}
    heights = apart(ends)
    for one, points in curves.items():
        places = [(across.at(point.rate), up.at(point.nbytes)) for point in points]
        through = [(x, sum(y for _, y in same) / len(same)) for x, part in groupby(places, lambda at: at[0])
                   for same in [list(part)]]  # fmt: skip
        path = " ".join(f"{x},{y:.1f}" for x, y in through)
        found.append(f'<polyline class="{one.style}" points="{path}"/>')
        if one.style != "c6":
            found += [f'<circle class="{one.style}" cx="{x}" cy="{y}" r="3.5"/>' for x, y in places]
        label = f"{one.name}, {_amount(float(f'{points[-1].nbytes:.3g}'))}"
        found.append(_text(RIGHT + 10, heights[one] + 4, label, "ours" if one.style == "c5" else ""))
    return found


def apart(wanted: dict[Curve, float]) -> dict[Curve, float]:
    """Heights of labels, moved down so far that none covers another; in the order of `wanted` where two are equal."""
    placed: dict[Curve, float] = {}
    floor = -math.inf
    for one in sorted(wanted, key=lambda one: wanted[one]):
        placed[one] = floor = max(wanted[one], floor + LABEL_GAP)
    return placed


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    styled = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{styled}>{text}</text>'


def _amount(nbytes: float) -> str:
    return f"{nbytes / 1e6:g} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:g} kB"
