"""Measure the attacks on room over real connections: coordinator, honest nodes and attackers are separate processes.

Model processes are stubs behind their real pipes (benchmarks/flood/stub_scorer.py). Half of the honest nodes connect
over libp2p, half over HTTPS. They first work for `BEFORE` seconds. Then the learner's steps are counted over equal
times by the clock, first calm, then with the attackers: other work on the machine affects both. In a fresh run the
attackers come with the nodes, and the run before it is fresh and calm.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.flood.catalogue import CASES
from benchmarks.flood.wire import NEWCOMERS, OVER_HTTPS, VISITORS, Order
from benchmarks.harness.lab import Process
from benchmarks.load.station import Measure, Station, free_port, station

NODES: Final = (3.0, 3.5, 4.0, 4.5, 5.0, 6.0)
"""Seconds per group of each honest node."""
BEFORE: Final = 30.0
SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "run": {
        "group_size": 4,
        "limit": 40,
        "batch_groups": 2,
        "staleness": 8,
        "heldout": 4,
        "evaluate_every": 1_000_000,
    },
}
OPTIONS: Final = ("--foreign-loopback", "--scorer", "benchmarks.flood.stub_scorer")


class Wired(NamedTuple):
    """Results of one attack. `bar`: least share of the calm steps. `calm`, `steps`: the learner's steps without and
    with the attack. `calm_cpu`, `cpu`: the main process's milliseconds of CPU per second. `requests`: number of
    requests of honest nodes during the attack, `unanswered`: of those. `said`: summary of the attackers."""

    bar: float
    calm: int
    steps: int
    calm_cpu: float
    cpu: float
    requests: float
    unanswered: float
    said: dict[str, float]

    @property
    def answered(self) -> float:
        return 1 - self.unanswered / max(1.0, self.requests)


def compared(seconds: float) -> dict[str, Wired]:
    """Measure the attacks that `--quick` contains, without those that drop prompts, and attackers over HTTPS."""
    results = {}
    for name, case in CASES.items():
        if case.quick and case.learned is None:
            fresh = case.setting.before == 0
            results[name] = _fresh(name, seconds, case.bar) if fresh else _known(name, seconds, case.bar)
    results[VISITORS] = _known(VISITORS, seconds, 0.9)
    return results


def _known(attack: str, seconds: float, bar: float) -> Wired:
    with wired_run() as place:
        time.sleep(BEFORE)
        calm, calm_cpu = place.counted(seconds)
        honest = place.honest()
        strangers = place.strangers(attack)
        steps, cpu = place.counted(seconds)
        asked = {what: count - honest[what] for what, count in place.honest().items()}
        return Wired(bar, calm, steps, calm_cpu, cpu, asked["requests"], asked["unanswered"], said_by(strangers))


def _fresh(attack: str, seconds: float, bar: float) -> Wired:
    with wired_run() as place:
        calm, calm_cpu = place.counted(seconds)
    with wired_run() as place:
        strangers = place.strangers(attack)
        steps, cpu = place.counted(seconds)
        asked = place.honest()
        return Wired(bar, calm, steps, calm_cpu, cpu, asked["requests"], asked["unanswered"], said_by(strangers))


class WiredRun:
    """A coordinator process, with honest nodes in two processes: over libp2p, and over HTTPS."""

    def __init__(self, place: Station, libp2p: list[str], https: list[str], nodes: Sequence[float]) -> None:
        self.at, self._libp2p, self._https = place, libp2p, https
        self._crowds: list[Process] = []
        self._nodes = [self._crowd(nodes=list(nodes[::2])), self._crowd(nodes=list(nodes[1::2]), https=True)]

    def strangers(self, attack: str) -> Process:
        """Start a process of attackers."""
        return self._crowd(attack=attack, https=attack in OVER_HTTPS)

    def newcomers(self, https: bool) -> Process:
        """Start a process of newcomers."""
        return self._crowd(attack=NEWCOMERS, https=https)

    def counted(self, seconds: float) -> tuple[int, float]:
        """Wait for `seconds`; return the learner's steps in them, and the main process's milliseconds of CPU per
        second."""
        before, began = self._version(), self.at.measure()
        time.sleep(seconds)
        return self._version() - before, _cpu(began, self.at.measure())

    def groups(self, https: bool) -> int:
        """Return the groups that honest nodes handed in so far: those over HTTPS, or over libp2p."""
        return int(said_by(self._nodes[https])["groups"])

    def honest(self) -> dict[str, float]:
        """Return the number of requests of honest nodes so far, of those that were not answered, and of their
        groups."""
        parts = [said_by(crowd) for crowd in self._nodes]
        return {what: sum(part[what] for part in parts) for what in parts[0]}

    def leave(self) -> None:
        for crowd in self._crowds:
            crowd.kill()

    def _version(self) -> int:
        return int(self.at.value("SELECT max(version) FROM versions"))

    def _crowd(self, nodes: list[float] | None = None, attack: str = "", *, https: bool = False) -> Process:
        process = Process([], "benchmarks.flood.wire")
        self._crowds.append(process)
        order = Order(
            terms=self.at.terms(40),
            addresses=self._https if https else self._libp2p,
            pin=self.at.run.https_pin if https else None,
            coordinator=self.at.run.peer_id,
            database=str(self.at.run.folder.database),
            nodes=nodes or [],
            attack=attack,
        )
        process.say(**msgspec.to_builtins(order))
        return process


@contextmanager
def wired_run(
    nodes: Sequence[float] = NODES, header: int | None = None, **sections: dict[str, Any]
) -> Iterator[WiredRun]:
    """Start a coordinator and its honest nodes. `nodes`: seconds per group of each. `header`: everybody comes through a
    TCP proxy, which sends PROXY headers of this version, or none (0). `sections`: further settings."""
    https = free_port()
    listen = f"/ip4/127.0.0.1/tcp/{https}"
    sections = {**SECTIONS, **sections, "https": {"listen": [listen]}}
    with (
        tempfile.TemporaryDirectory(prefix="echo2-flood-") as folder,
        station(Path(folder) / "run", sections=sections, options=OPTIONS) as station_run,
        _before(station_run.port, header) as libp2p_port,
        _before(https, header) as https_port,
    ):
        peer = f"p2p/{station_run.run.peer_id}"
        place = WiredRun(
            station_run,
            [f"/ip4/127.0.0.1/tcp/{libp2p_port}/{peer}"],
            [f"/ip4/127.0.0.1/tcp/{https_port}/https/{peer}"],
            nodes,
        )
        try:
            yield place
        finally:
            place.leave()


@contextmanager
def _before(port: int, header: int | None) -> Iterator[int]:
    """Yield the port at which clients dial `port`: that of a TCP proxy, or itself."""
    if header is None:
        yield port
        return
    proxy = Process([], "benchmarks.attacks.tcp_proxy", str(port), "--header", str(header))
    try:
        yield int(proxy.hear()["port"])
    finally:
        proxy.kill()


def said_by(crowd: Process) -> dict[str, float]:
    crowd.say(say="said")
    return crowd.hear()


def _cpu(began: Measure, ended: Measure) -> float:
    return 1000 * (ended.cpu - began.cpu) / (ended.at - began.at)
