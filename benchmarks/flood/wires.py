"""The attacks on room over real connections: coordinator, honest nodes and strangers are processes of their own.

Model processes are stubs behind their real pipes (benchmarks/flood/stub_scorer.py). Honest nodes work for `BEFORE`
seconds before the strangers begin, and in a fresh run none. Steps are then counted for so many seconds by the clock, so
a busy machine shows in both: each attack stands beside a calm run of its own, made right before it.
"""

import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.flood.catalogue import CASES
from benchmarks.flood.wire import Order
from benchmarks.lab import Process
from benchmarks.load.station import Station, station

NODES: Final = (4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
BEFORE: Final = 30.0
SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "run": {
        "group_size": 4,
        "limit": 40,
        "batch_groups": 4,
        "staleness": 4,
        "heldout": 4,
        "evaluate_every": 1_000_000,
    },
}
OPTIONS: Final = ("--foreign-loopback", "--scorer", "benchmarks.flood.stub_scorer")


class Wired(NamedTuple):
    """Steps of the learner in the time that counts, milliseconds of the main process's CPU for a second then, and what
    the strangers did."""

    steps: int
    cpu: float
    said: dict[str, float]


def went(attack: str, seconds: float, *, fresh: bool) -> Wired:
    """Run once, with an attack of the catalogue or, where it is empty, calm."""
    with (
        tempfile.TemporaryDirectory(prefix="echo2-flood-") as folder,
        station(Path(folder) / "run", sections=SECTIONS, options=OPTIONS) as place,
    ):
        crowds = [_crowd(place, nodes=list(NODES))]
        try:
            time.sleep(0.0 if fresh else BEFORE)
            before, began = _version(place), place.measure()
            if attack:
                crowds.append(_crowd(place, attack=attack))
            time.sleep(seconds)
            ended, steps = place.measure(), _version(place) - before
            crowds[-1].say(say="said")
            said = crowds[-1].hear()
        finally:
            for crowd in crowds:
                crowd.kill()
    return Wired(steps, 1000 * (ended.cpu - began.cpu) / (ended.at - began.at), said)


def compared(seconds: float) -> dict[str, tuple[Wired, Wired]]:
    """Return for each attack that `--quick` looks at a calm run, and one with the attack."""
    found = {}
    for name, case in CASES.items():
        if case.quick:
            fresh = case.setting.before == 0
            found[name] = went("", seconds, fresh=fresh), went(name, seconds, fresh=fresh)
    return found


def _crowd(place: Station, nodes: list[float] | None = None, attack: str = "") -> Process:
    process = Process([], "benchmarks.flood.wire")
    order = Order(
        terms=place.terms(40),
        addresses=place.addresses,
        coordinator=place.run.peer_id,
        database=str(place.run.folder.database),
        nodes=nodes or [],
        attack=attack,
    )
    process.say(**msgspec.to_builtins(order))
    return process


def _version(place: Station) -> int:
    return int(place.value("SELECT max(version) FROM versions"))
