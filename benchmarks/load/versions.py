"""Memory and open descriptors of a coordinator's main process after many versions.

The crowd feeds the stub learner, which makes a version of every batch. Memory is taken after what nobody needs was
given back, at a quarter of the versions and at the end; the difference is what a version leaves behind.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.load.crowd import PERIOD
from benchmarks.load.station import Station, station

CONNECTIONS: Final = 4
RATE: Final = 24.0
"""Groups offered per second."""
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "run": {"group_size": 2, "limit": 6, "batch_groups": 1, "staleness": 64, "heldout": 4, "evaluate_every": 1000},
    "leases": {"minimum_seconds": 60.0},
}
_PATIENCE: Final = 600.0


class Kept(NamedTuple):
    """`descriptors`: at the end. `per_version`: bytes of memory, from a quarter of the versions to the end."""

    versions: int
    descriptors: float
    first: float
    last: float
    per_version: float


def measured(versions: int, descriptors: int | None = None) -> Kept:
    """Make so many versions. `descriptors`: the soft limit of the process."""
    options = ("--descriptors", str(descriptors)) if descriptors else ()
    with (
        tempfile.TemporaryDirectory(prefix="echo2-load-") as folder,
        station(Path(folder) / "run", sections=SETTINGS, options=options) as place,
        place.crowd(round(RATE * PERIOD), connections=CONNECTIONS) as crowd,
    ):
        crowd.say(seconds=_PATIENCE)
        began = _reached(place, versions // 4)
        early = place.measure("freshly")
        ended = _reached(place, versions)
        late = place.measure("freshly")
    grown = (late.memory - early.memory) / (ended - began)
    return Kept(ended, late.descriptors, early.memory, late.memory, grown)


def _reached(place: Station, version: int) -> int:
    until = time.monotonic() + _PATIENCE
    while (now := int(place.value("SELECT max(version) FROM versions") or 0)) < version:
        if time.monotonic() > until:
            raise TimeoutError(f"version {now} of {version} after {_PATIENCE:.0f} s")
        place.measure()
        time.sleep(0.25)
    return now
