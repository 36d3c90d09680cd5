"""Draw `benchmarks.diff`: bytes of a version against the learning rate, both axes logarithmic, as an SVG.

A point is the mean over a stream's steps, scaled to a model of `MODEL` bytes, so that streams of a whole model and of a
part of it share one axis. The label at the end of each curve gives its name and its bytes at the highest rate.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from benchmarks.diff.sizes import Sizes
from benchmarks.diff.streams import Stream
from benchmarks.harness import picture
from benchmarks.harness.picture import BOTTOM, LEFT, RIGHT, TOP, Axis
from echo2.runtime.errors import LocalFault

MODEL: Final = 269_030_016
"""Bytes of SmolLM2-135M in bfloat16."""


class Curve(NamedTuple):
    """A codec: its name, its class of line (benchmarks/harness/picture.py), and its bytes."""

    name: str
    style: str
    bytes_of: Callable[[Sizes], float]


CURVES: Final = (
    Curve("full", "c1", lambda stream_sizes: stream_sizes.full),
    Curve("full, zstd-1", "c2", lambda stream_sizes: stream_sizes.full_zstd),
    Curve("int32 gaps + zstd-1", "c3", lambda stream_sizes: stream_sizes.gaps),
    Curve("XOR + zstd-1", "c4", lambda stream_sizes: stream_sizes.xor),
    Curve("ours", "c5", lambda stream_sizes: stream_sizes.ours),
    Curve("entropy given exponent", "c6", lambda stream_sizes: stream_sizes.bound),
)


class Point(NamedTuple):
    """A point of a curve: a learning rate, and bytes per version of a model of `MODEL` bytes."""

    rate: float
    nbytes: float


def draw(measured: Sequence[tuple[Stream, Sizes]]) -> str:
    """Return the SVG. Raises `LocalFault` unless the names of the streams contain at least two learning rates."""
    known = [(stream.rate, stream_sizes) for stream, stream_sizes in measured if stream.rate is not None]
    curves = {
        one: sorted(Point(rate, MODEL * one.bytes_of(stream_sizes) / stream_sizes.full) for rate, stream_sizes in known)
        for one in CURVES
    }
    rates = sorted({rate for rate, _ in known})
    if len(rates) < 2:
        raise LocalFault("a picture needs streams of two learning rates or more, told by their names (lr2e-06)")
    values = [point.nbytes for points in curves.values() for point in points]
    across = Axis(rates[0] / 1.15, rates[-1] * 1.15, LEFT, RIGHT)
    up = Axis(min(values) / 1.5, max(values) * 1.4, BOTTOM, TOP)
    columns = {rate: f"{rate:.0e}".replace("e-0", "e-") for rate in rates}
    rows = {value: _amount(value) for value in up.ticks()}
    return picture.svg(
        "Bytes of a version against the learning rate",
        "Bytes from one version to the next, by learning rate",
        "SmolLM2-135M under GRPO (AdamW, bf16 export each step); full: 269 MB",
        [*picture.grid(across, up, columns, rows, "learning rate"), *_lines(curves, across, up)],
    )


def _lines(curves: dict[Curve, list[Point]], across: Axis, up: Axis) -> list[str]:
    marks = []
    ends = {one: up.at(points[-1].nbytes) for one, points in curves.items()}
    heights = picture.apart(ends)
    for one, points in curves.items():
        places = [(across.at(point.rate), up.at(point.nbytes)) for point in points]
        through = [(x, sum(y for _, y in same) / len(same)) for x, part in groupby(places, lambda at: at[0])
                   for same in [list(part)]]  # fmt: skip
        marks.append(picture.polyline(through, one.style))
        if one.style != "c6":
            marks += [picture.circle(x, y, one.style) for x, y in places]
        label = f"{one.name}, {_amount(float(f'{points[-1].nbytes:.3g}'))}"
        marks.append(picture.text(RIGHT + 10, heights[one] + 4, label, "ours" if one.style == "c5" else ""))
    return marks


def _amount(nbytes: float) -> str:
    return f"{nbytes / 1e6:g} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:g} kB"
