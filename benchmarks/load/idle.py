"""Measure a refused node: the coordinator's CPU per second, where the node asks as often as it is told to.

There is no room for a group: a batch of one, a staleness limit of 0, and a node that holds the only lease. The crowd's
nodes then ask until the window ends; what the coordinator's main process spends without them is subtracted. What an ask
costs over the time that its refusal tells a node to wait is what the node costs: also where answers are late.
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
"""Seconds until every node has asked, and heard how rarely it is to ask."""


class Idle(NamedTuple):
    """`cpu`: milliseconds per node and second. `ask`: milliseconds per ask. `told`: seconds until a node may ask again,
    the mean of the refusals."""

    cpu: float
    ask: float
    told: float


def measured(nodes: int, seconds: float) -> Idle:
    """Let `nodes` nodes wait, and measure for `seconds`."""
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
