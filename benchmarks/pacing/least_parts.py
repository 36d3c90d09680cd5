"""The least part of its rate's share that a node has of the groups drawn, where the quickest node is twenty times as
quick as the slowest. `python -m benchmarks.pacing --parts` prints the table.

The slowest group takes three steps of S = 8, and each node has eight groups at once. Speeds are evenly apart by their
logarithms. Bars: see `BARS`; at 1.1 times the supply all nodes work all the time, and slow ones lose what they finish
before each version.
"""

import statistics
from typing import Final, NamedTuple

from benchmarks.harness.bench import Claim
from benchmarks.plays.run_scene import RunScene
from benchmarks.plays.simulated_run import SimulatedRun

FLEETS: Final = (4, 12)
BARS: Final = {1.1: 0.7, 1.5: 0.8, 3.0: 0.8}
"""Supply over the need -> the least part that is good."""
STEPS: Final = 70
_AT_ONCE: Final = 8
_SLOWEST: Final = 3.0  # steps
_SPREAD: Final = 20.0


class Parts(NamedTuple):
    """A row of the table: least parts of a fleet under `room` and under the window, means over the seeds."""

    nodes: int
    supply: float
    room: float
    window: float


def scene_of(nodes: int, supply: float) -> RunScene:
    """Return the scene of a row."""
    turnarounds = tuple(_SLOWEST * _SPREAD ** (-place / (nodes - 1)) for place in range(nodes))
    batch = round(_AT_ONCE * sum(1 / turnaround for turnaround in turnarounds) / supply)
    return RunScene(turnarounds, at_once=_AT_ONCE, batch=batch, staleness=8, step_seconds=2.0)


def parts_of(nodes: int, supply: float, steps: int, seeds: int) -> Parts:
    """Simulate a fleet under both rules, with the same seeds."""
    return Parts(nodes, supply, *(_mean_part(nodes, supply, steps, seeds, windowed) for windowed in (False, True)))


def claims_of(rows: list[Parts]) -> list[Claim]:
    """Return a claim for each supply: the least part under the window, over its fleets."""
    return [
        Claim(f"least part at {supply:g} x", min(one.window for one in rows if one.supply == supply), "its share", bar)
        for supply, bar in BARS.items()
    ]


def _mean_part(nodes: int, supply: float, steps: int, seeds: int, windowed: bool) -> float:
    runs = [SimulatedRun(scene_of(nodes, supply), windowed=windowed, seed=seed) for seed in range(1, seeds + 1)]
    for run in runs:
        run.run(steps)
    return statistics.fmean(run.least_part() for run in runs)
