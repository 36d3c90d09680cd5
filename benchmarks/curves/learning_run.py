"""A run of a curve by real processes: a coordinator and two nodes on loopback. A run that was stopped goes on."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.curves.plans import Curve
from benchmarks.curves.series import Point
from benchmarks.load.station import free_port
from coordinator.demo.demo import environment
from coordinator.demo.processes import ProcessGroup
from coordinator.metrics.views import Evaluation, RunState
from coordinator.run import poker_measure, setup
from coordinator.web import status
from p2p.errors import Unreachable
from weights.store import StoreReader

NODES: Final = ("node-1", "node-2")
_COORDINATOR: Final = "coordinator"
_POLL, _START, _DRAIN = 5.0, 300.0, 120.0  # seconds


class LearningRun:
    """One run in `folder`. `points`: its evaluations so far; `tell`: gets a sentence per evaluation."""

    def __init__(self, folder: Path, curve: Curve, seed: int, steps: int | None, tell: Callable[[str], None]) -> None:
        self._folder, self._curve, self._seed, self._tell = folder, curve, seed, tell
        self._steps = steps or int(curve.run["steps"])
        self.points: dict[int, Point] = {}

    def run(self, base: Path, known: dict[int, Point]) -> RunState:
        """Make the run, unless it is there, and run it to its end. `known`: points of an earlier start. Raises
        `ProcessFault`."""
        self.points = dict(known)
        home = self._folder / "run"
        if not home.exists():
            make_run(home, self._curve, self._seed, self._steps, base)
        for name in ("logs", "tmp"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
            (self._folder / name).mkdir()
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        processes = ProcessGroup(self._folder / "logs", environment(os.environ, self._folder))
        start = [sys.executable, "-m", "coordinator.cli", "run", "--home", str(home), "--port", str(port)]
        try:
            processes.start(_COORDINATOR, start)
            state = self._first()
            for name in NODES:
                node = ["--home", str(self._folder / name), "--name", name, "--listen", "/ip4/127.0.0.1/tcp/0"]
                join = [sys.executable, "-m", "node.cli", "join", state.invite, "--gpu", "cpu"]
                processes.start(name, [*join, *node])
            while state.phase != "finished":
                processes.check(may_end=NODES if state.phase == "finishing" else ())
                time.sleep(_POLL)
                state = self._look() or state
                self._note(state)
            processes.wait(list(NODES), _DRAIN)
            time.sleep(_POLL)
            state = self._look() or state
            self._note(state)
            processes.end(_COORDINATOR, signal.SIGTERM, _DRAIN)
        finally:
            processes.stop()
        return state

    def _note(self, state: RunState) -> None:
        for evaluation in state.evaluations:
            if evaluation.version not in self.points:
                self.points[evaluation.version] = point = self._point(evaluation, state)
                self._tell(f"step {state.step}: {point}")

    def _point(self, evaluation: Evaluation, state: RunState) -> Point:
        figures: dict[str, Any] = {}
        if self._curve.measured:
            measured = self._exploitability(evaluation.version, state.era)
            figures = {} if measured is None else {"exploitability": measured[0], "legal": measured[1]}
        return Point(version=evaluation.version, sampled=evaluation.sampled, greedy=evaluation.greedy, **figures)

    def _exploitability(self, version: int, era: int) -> tuple[float, float] | None:
        """Measure a version whose snapshot is stored; None: it is not any more."""
        with StoreReader(self._folder / "run" / "store") as store:
            found = [one.path for one in store.snapshots() if (one.era, one.version) == (era, version)]
        if not found:
            return None
        copy = self._folder / "tmp" / "measured.safetensors"
        with suppress(FileNotFoundError):
            shutil.copyfile(found[0], copy)
            measured = poker_measure.measured(self._curve.task, self._folder / "run" / "model", copy, 4)
            return measured.exploitability, measured.legal
        return None

    def _look(self) -> RunState | None:
        with suppress(Unreachable):
            return status.decode(status.fetch(self._url))
        return None

    def _first(self) -> RunState:
        until = time.monotonic() + _START
        while time.monotonic() < until:
            state = self._look()
            if state is not None and state.invite:
                return state
            time.sleep(1.0)
        raise TimeoutError(f"the coordinator does not answer; see {self._folder / 'logs'}")


def make_run(home: Path, curve: Curve, seed: int, steps: int, base: Path) -> None:
    """Make the run folder."""
    flags: dict[str, dict[str, Any]] = {
        "run": {**curve.run, "name": "curve", "task": curve.task, "steps": steps},
        "learner": {**curve.learner, "seed": seed},
        "leases": {"minimum_seconds": 600.0},
        "network": {"listen": ["/ip4/127.0.0.1/tcp/0"], "mdns": False},
        "https": {"listen": []},
    }
    config = setup.settings_for(str(base), flags, env={})
    setup.init(home, str(base), config, now=time.time_ns() // 1_000_000)
