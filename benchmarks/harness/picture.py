"""Draw the benchmarks' pictures: an SVG with two axes, whose curves are named at their right ends.

Colours follow the viewer's scheme, light or dark. Classes of lines and points: c1 to c4 for other systems, c5 for
ours, c6 for a bound.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

WIDTH, HEIGHT = 760, 470
LEFT, RIGHT, TOP, BOTTOM = 76, 530, 58, 404
LABEL_GAP: Final = 17.0
STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
.title { font-size: 15px; font-weight: 600 } .grid { stroke: #8b949e; stroke-opacity: .25 }
polyline { fill: none; stroke-width: 2 } .c5 { stroke-width: 4 } .c6 { stroke-dasharray: 3 4 }
.c1 { stroke: #8c959f } .c2 { stroke: #6e7781 } .c3 { stroke: #bf8700 } .c4 { stroke: #8250df }
.c5 { stroke: #1a7f37 } .c6 { stroke: #1f2328 }
circle { stroke-width: 2; fill: #fff } circle.c6 { stroke-dasharray: none }
.ours { font-weight: 600 } .filled { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } circle { fill: #0d1117 } .filled { fill: #3fb950 }
  .c3 { stroke: #d29922 } .c4 { stroke: #a371f7 } .c5 { stroke: #3fb950 } .c6 { stroke: #e6edf3 }
}
"""

Named = TypeVar("Named")


class Axis(NamedTuple):
    """A logarithmic axis, from `low` at pixel `start` to `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return 1, 2 and 5 of every decade."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))
        every = (factor * 10.0**decade for decade in decades for factor in (1, 2, 5))
        return [value for value in every if self.low <= value <= self.high]


class Linear(NamedTuple):
    """A linear axis from `low` at pixel `start` to `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return about six round values."""
        step = 10 ** len(str(int((self.high - self.low) / 6))) / 10 or 1.0
        step = next(step * factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= 8)
        return [step * place for place in range(int(self.low / step), int(self.high / step) + 1)]


class Scale(Protocol):
    """An axis of any kind."""

    def at(self, value: float) -> float:
        """Return the pixel of a value."""


def svg(name: str, heading: str, below: str, parts: Iterable[str]) -> str:
    """Return the whole SVG. `name`: its text for screen readers. `heading`, `below`: a title, and a smaller line below
    it."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{name}</title>",
        f"<style>{STYLE}</style>",
        text(LEFT, 22, heading, "title"),
        text(LEFT, 41, below, "small"),
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def grid(across: Scale, up: Scale, columns: Mapping[float, str], rows: Mapping[float, str], caption: str) -> list[str]:
    """Draw grid lines at these values, labelled with these words. `caption`: below the horizontal axis."""
    marks = []
    for value, said in rows.items():
        y = up.at(value)
        marks += [f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>', text(LEFT - 8, y + 4, said, "small", "end")]
    for value, said in columns.items():
        x = across.at(value)
        marks += [f'<path class="grid" d="M{x} {TOP}V{BOTTOM}"/>', text(x, BOTTOM + 20, said, "small", "middle")]
    return [*marks, text((LEFT + RIGHT) / 2, BOTTOM + 42, caption, "small", "middle")]


def polyline(places: Sequence[tuple[float, float]], style: str) -> str:
    path = " ".join(f"{x},{y:.1f}" for x, y in places)
    return f'<polyline class="{style}" points="{path}"/>'


def circle(x: float, y: float, style: str) -> str:
    return f'<circle class="{style}" cx="{x}" cy="{y}" r="3.5"/>'


def apart(wanted: Mapping[Named, float]) -> dict[Named, float]:
    """Return the heights of labels, moved down until none covers another. Equal heights keep the order of `wanted`."""
    placed: dict[Named, float] = {}
    floor = -math.inf
    for one in sorted(wanted, key=lambda one: wanted[one]):
        placed[one] = floor = max(wanted[one], floor + LABEL_GAP)
    return placed


def text(x: float, y: float, said: str, style: str = "", anchor: str = "start") -> str:
    styled = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{styled}>{said}</text>'
