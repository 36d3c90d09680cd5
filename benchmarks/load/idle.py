"""Measure a refused node: the coordinator's CPU per second, where the node asks as often as its refusals permit.

There is room for one group (a batch of one, a staleness limit of 0), and one node holds its lease. The other nodes
request leases until the measurement ends. The main process's CPU without requests, measured before, is subtracted. The
cost of a node per second is the cost of a request divided by the seconds that the refusal tells the node to wait. So
late answers do not change it.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.load.station import station

SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "run": {"group_size": 2, "limit": 6, "batch_groups": 1, "staleness": 0, "heldout": 4},
    "leases": {"minimum_seconds": 900.0},
}
SETTLING: Final = 20.0
"""Seconds within which every node sends a request, and is told when to send the next."""


class Idle(NamedTuple):
    """Result. `cpu`: milliseconds of CPU per node and second. `ask`: milliseconds of CPU per request. `told`: seconds
    until a node may send its next request, the mean over the refusals."""

    cpu: float
    ask: float
    told: float


def measured(nodes: int, seconds: float) -> Idle:
    """Let `nodes` nodes request leases, and measure for `seconds`."""
    with (
        tempfile.TemporaryDirectory(prefix="echo2-load-") as folder,
        station(Path(folder) / "run", sections=SETTINGS) as place,
        place.crowd(nodes) as crowd,
    ):
        began = place.measure()
        time.sleep(seconds / 2)
        alone = place.measure()
        crowd.say(idle=SETTLING + seconds, settling=SETTLING)
        time.sleep(SETTLING)
        first = place.measure()
        time.sleep(seconds)
        last = place.measure()
        said = crowd.hear()
    without = (alone.cpu - began.cpu) / (alone.at - began.at)
    spent = last.cpu - first.cpu - without * (last.at - first.at)
    ask, told = 1000 * spent / said["asks"], said["told"] / said["asks"] / 1000
    return Idle(ask / told, ask, told)
