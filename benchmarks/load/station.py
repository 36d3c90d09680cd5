"""Start a coordinator in a process of its own, and many light nodes in another."""

import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.attacks.light_node import Terms, terms_of
from benchmarks.harness.bench import cpu_of
from benchmarks.harness.lab import Process
from benchmarks.load.crowd import Crowd
from benchmarks.load.folder import make_run
from echo2.coordinator.run.setup import Run

START_WITHIN: Final = 240.0
"""Seconds until the coordinator's first Head."""


class StationFault(Exception):
    """The coordinator did not start."""


@dataclass(frozen=True)
class Measure:
    """Figures of the coordinator's main process. `memory`: resident bytes. `cpu`: its CPU seconds so far, `at`:
    monotonic seconds. `loop_seconds`, `held_cpu`: the longest callback of the event loop, by the clock and in CPU
    seconds of its thread."""

    memory: float
    descriptors: float
    cpu: float
    at: float
    loop_seconds: float
    held_cpu: float


class Station:
    """A running coordinator. `port`: of libp2p; `page`: port of its page."""

    def __init__(self, run: Run, host: Process, port: int, page: int) -> None:
        self.run, self._host, self.port, self.page = run, host, port, page
        self.addresses = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{run.peer_id}"]

    def measure(self, say: str = "measure") -> Measure:
        """Return the figures of the main process. `say`: see benchmarks/load/host.py."""
        self._host.say(say=say)
        return Measure(**self._host.hear())

    def cpu(self) -> float:
        """Return the CPU seconds so far of the coordinator and its model processes."""
        return cpu_of(self._host.pid)

    def accepted(self) -> int:
        """Return the number of groups accepted so far."""
        return int(self.value("SELECT count(*) FROM verdicts WHERE verdict = 'accepted'"))

    def value(self, query: str) -> Any:
        """Return the first value that a query gives in run.sqlite."""
        with closing(sqlite3.connect(f"file:{self.run.folder.database}?mode=ro", uri=True, timeout=10.0)) as reader:
            row = reader.execute(query).fetchone()
            return None if row is None else row[0]

    def terms(self, tokens: int = 4) -> Terms:
        """Return the facts that a light node needs about the newest version."""
        version = int(self.value("SELECT max(version) FROM versions"))
        root = self.value(f"SELECT root FROM versions WHERE version = {version}")
        return terms_of(self.run, version, root, tokens)

    @contextmanager
    def crowd(self, nodes: int, *, connections: int = 64, tokens: int = 4) -> Iterator[Process]:
        """Start light nodes, yield their process once they have said hello, and end it. `tokens`: of a rollout."""
        process = Process([], "benchmarks.load.crowd")
        try:
            crowd = Crowd(terms=self.terms(tokens), addresses=self.addresses, connections=connections)
            process.say(**msgspec.to_builtins(crowd))
            process.hear()
            process.say(nodes=nodes)
            process.hear()
            yield process
        finally:
            process.kill()


@contextmanager
def station(
    folder: Path, *, sections: Mapping[str, Mapping[str, Any]], options: tuple[str, ...] = (), run: Run | None = None
) -> Iterator[Station]:
    """Run a coordinator until the block ends: that of `run`, or of a new run in `folder`. `sections`: settings of a new
    run. `options`: of benchmarks/load/host.py. Raises `StationFault`, `ProcessEnded`."""
    port, page = free_port(), free_port()
    network = {**sections.get("network", {}), "listen": [f"/ip4/127.0.0.1/tcp/{port}"], "mdns": False}
    run = run or make_run(folder, now=time.time_ns() // 1_000_000, **{**sections, "network": network})
    head = run.folder.path / "head"
    before = head.stat().st_mtime_ns if head.exists() else None
    host = Process([], "benchmarks.load.host", str(run.folder.path), "--web-port", str(page), *options)
    try:
        until = time.monotonic() + START_WITHIN
        while not head.exists() or head.stat().st_mtime_ns == before:
            if host.ended:
                raise host.end()
            if time.monotonic() > until:
                raise StationFault(f"no Head within {START_WITHIN:.0f} s")
            time.sleep(0.05)
        running_station = Station(run, host, port, page)
        running_station.measure()
        yield running_station
    finally:
        host.kill()


def free_port() -> int:
    """Return an unused port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
