"""Measure memory and open descriptors of a coordinator's main process after many versions.

Light nodes submit groups, and the stub learner makes a version of every batch. Memory is measured after unused memory
was given back, SQLite's page cache too. Bounded tables fill first: documents of `publisher.WINDOW` versions, 4,096
answers. So the lasting growth per version is the slope from `FULL` versions on: the
median over all pairs of measurements (Theil and Sen), which one doubling of a table does not change.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.load.crowd import PERIOD
from benchmarks.load.station import Station, station

CONNECTIONS: Final = 4
"""Connections of the light nodes."""
RATE: Final = 24.0
"""Groups offered per second."""
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "run": {"group_size": 2, "limit": 6, "batch_groups": 1, "staleness": 64, "heldout": 4, "evaluate_every": 1000},
    "leases": {"minimum_seconds": 60.0},
}
EARLY: Final = 100
"""Version of the first measurement, which is printed alone."""
FULL: Final = 2000
"""Version from which on all bounded tables are full."""
EVERY: Final = 50
"""Versions from one measurement to the next."""
_PATIENCE: Final = 900.0  # seconds


class Kept(NamedTuple):
    """Result. `descriptors`: at the end. `first`, `last`: bytes of memory at `EARLY` versions and at the end.
    `per_version`: bytes of memory that a version leaves behind; None in a run of no more than `FULL` versions."""

    versions: int
    descriptors: float
    first: float
    last: float
    per_version: float | None


def measured(versions: int, descriptors: int | None = None) -> Kept:
    """Run until so many versions exist. `descriptors`: the main process's limit of open files. Raises
    `TimeoutError`."""
    options = ("--descriptors", str(descriptors)) if descriptors else ()
    with (
        tempfile.TemporaryDirectory(prefix="echo2-load-") as folder,
        station(Path(folder) / "run", sections=SETTINGS, options=options) as place,
        place.crowd(round(RATE * PERIOD), connections=CONNECTIONS) as crowd,
    ):
        crowd.say(seconds=_PATIENCE)
        measures = [(_reached(place, EARLY), place.measure("freshly"))]
        for version in range(min(FULL, versions), versions + 1, EVERY):
            measures.append((_reached(place, version), place.measure("freshly")))
    (_, early), (ended, late) = measures[0], measures[-1]
    points = [(version, measure.memory) for version, measure in measures[1:]]
    return Kept(ended, late.descriptors, early.memory, late.memory, slope(points) if len(points) > 1 else None)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope over all pairs of points (x, y)."""
    pairs = combinations(points, 2)
    return statistics.median((y - before) / (x - was) for (was, before), (x, y) in pairs)


def _reached(place: Station, version: int) -> int:
    until = time.monotonic() + _PATIENCE
    while (now := int(place.value("SELECT max(version) FROM versions") or 0)) < version:
        if time.monotonic() > until:
            raise TimeoutError(f"version {now} of {version} after {_PATIENCE:.0f} s")
        place.measure()
        time.sleep(0.25)
    return now
