"""Draw a broadcast: the time until the last of n peers has all, against n, both axes logarithmic, as an SVG.

After Figure 4 of ECHO-2 (arXiv 2602.02192). All links are alike: U bytes per second up and down. W: bytes of the
payload. So W / U is both the bound T* and the time of a star whose uplink has no limit; a star whose uplink is U takes
n W / U. The vertical axis is in units of W / U: broadcasts of another payload or over other links fit into one picture.
"""

from collections.abc import Mapping

from benchmarks.harness import picture
from benchmarks.harness.picture import BOTTOM, LEFT, RIGHT, TOP, Axis
from echo2.runtime.errors import LocalFault


def draw(simulated: Mapping[int, float], measured: Mapping[int, float], load: str) -> str:
    """Return the SVG. `simulated`, `measured`: per n the time in units of W / U. `load`: the simulated payload, in a
    few words. Raises `LocalFault` unless at least two n were simulated."""
    sizes = sorted({*simulated, *measured})
    if len(simulated) < 2:
        raise LocalFault("a picture needs two numbers of peers or more")
    values = [1.0, float(sizes[-1]), *simulated.values(), *measured.values()]
    across = Axis(sizes[0] / 1.15, sizes[-1] * 1.15, LEFT, RIGHT)
    up = Axis(min(values) / 1.5, max(values) * 1.4, BOTTOM, TOP)
    columns = {float(n): str(n) for n in sizes}
    rows = {value: f"{value:g}" for value in up.ticks()}
    return picture.svg(
        "Time of a broadcast against the number of peers",
        "Until the last of n peers has all, in units of W / U",
        f"W: bytes, U: uplink of the source and of each peer; simulated: {load}",
        [
            *picture.grid(across, up, columns, rows, "n, peers"),
            *_lines(simulated, across, up),
            *_points(simulated, measured, across, up),
            *_names(simulated, measured, up, sizes[-1]),
        ],
    )


def _lines(simulated: Mapping[int, float], across: Axis, up: Axis) -> list[str]:
    ends = (across.low, across.high)
    return [
        picture.polyline([(across.at(n), up.at(n)) for n in ends], "c1"),
        picture.polyline([(across.at(n), up.at(1)) for n in ends], "c6"),
        picture.polyline([(across.at(n), up.at(simulated[n])) for n in sorted(simulated)], "c5"),
    ]


def _points(simulated: Mapping[int, float], measured: Mapping[int, float], across: Axis, up: Axis) -> list[str]:
    """Draw the points. Values of simulated points stand below the bound, those of measured ones above both points."""
    points = []
    for n, times in simulated.items():
        x = across.at(n)
        points.append(picture.circle(x, up.at(times), "c5"))
        points.append(picture.text(x, up.at(1) + 18, f"{times:.2f}", "small", "middle"))
    for n, times in measured.items():
        x, y = across.at(n), up.at(times)
        points.append(picture.circle(x, y, "c5 filled"))
        points.append(picture.text(x, min(y, up.at(simulated.get(n, times))) - 9, f"{times:.2f}", "ours", "middle"))
    return points


def _names(simulated: Mapping[int, float], measured: Mapping[int, float], up: Axis, most: int) -> list[str]:
    wanted = {"star, limited uplink: n W / U": up.at(most)}
    if measured:
        wanted["● ours, measured"] = up.at(max(measured.values())) - picture.LABEL_GAP
    wanted["○ ours, simulated"] = up.at(simulated[max(simulated)])
    wanted["W / U: T*, and star, unlimited"] = up.at(1)
    heights = picture.apart(wanted)
    return [
        picture.text(RIGHT + 10, height + 4, name, "ours" if "ours" in name else "") for name, height in heights.items()
    ]
