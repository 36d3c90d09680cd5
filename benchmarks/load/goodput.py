"""Measure goodput against offered load: accepted groups per second of a real coordinator, light nodes, stub processes.

Each load gets a coordinator of its own. Loads rise until less than a share `KEPT_UP` of the offered groups is accepted,
or `_MOST` is exceeded. The peak is the largest rate of accepted groups at any load. Then twice the peak's load is
offered.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.load.crowd import PERIOD
from benchmarks.load.station import station

KEPT_UP: Final = 0.9
_MOST: Final = 600.0  # most groups per second that are offered
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "run": {"group_size": 2, "limit": 6, "batch_groups": 9000, "staleness": 8, "heldout": 4},
    "leases": {"minimum_seconds": 60.0},
}
"""A batch is larger than the number of groups that are made: there is room for all, and the learner makes no step."""


class Rung(NamedTuple):
    """One load, in groups per second. `cpu`: milliseconds of the coordinator's main process per accepted group;
    `all_cpu`: of all its processes."""

    offered: float
    accepted: float
    cpu: float
    all_cpu: float


def climb(seconds: float, *, first: float, factor: float, commit: float) -> tuple[list[Rung], Rung]:
    """Offer rising loads for `seconds` each; return the rungs, and the one at twice the peak's load. `commit`: extra
    milliseconds per commit."""
    rungs: list[Rung] = []
    rate = first
    while not rungs or (rungs[-1].accepted >= KEPT_UP * rungs[-1].offered and rate <= _MOST):
        rungs.append(measured(rate, seconds, commit=commit))
        rate *= factor
    peak = max(rungs, key=lambda rung: rung.accepted)
    return rungs, measured(2 * peak.offered, seconds, commit=commit)


def measured(rate: float, seconds: float, *, commit: float) -> Rung:
    """Offer `rate` groups per second, and count for `seconds`, from each node's second group on: by then refused nodes
    have been told when to ask again. `commit`: as in `climb`."""
    nodes = max(1, round(rate * PERIOD))
    options = ("--commit-milliseconds", f"{commit:g}") if commit else ()
    with (
        tempfile.TemporaryDirectory(prefix="echo2-load-") as folder,
        station(Path(folder) / "run", sections=SETTINGS, options=options) as place,
        place.crowd(nodes) as crowd,
    ):
        crowd.say(seconds=2 * PERIOD + seconds + 1.0)
        time.sleep(2 * PERIOD)
        began, accepted, cpu = place.measure(), place.accepted(), place.cpu()
        time.sleep(seconds)
        ended, accepted_groups, all_cpu = place.measure(), place.accepted() - accepted, place.cpu() - cpu
        crowd.hear()
        wall = ended.at - began.at
        return Rung(
            nodes / PERIOD,
            accepted_groups / wall,
            1000 * (ended.cpu - began.cpu) / max(1, accepted_groups),
            1000 * all_cpu / max(1, accepted_groups),
        )
