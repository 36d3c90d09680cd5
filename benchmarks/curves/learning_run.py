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

from msgspec.structs import replace

from benchmarks.curves.plans import Curve
from benchmarks.curves.series import Point
from benchmarks.harness.crew import Crew
from benchmarks.load.station import free_port
from echo2.coordinator.calibration import poker_measure
from echo2.coordinator.demo.demo import environment
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.run import setup
from echo2.p2p.errors import Unreachable
from echo2.weights.store import StoreReader

NODES: Final = ("node-1", "node-2")
_COORDINATOR: Final = "coordinator"
_POLL, _START, _DRAIN = 5.0, 300.0, 120.0  # seconds


class LearningRun:
    """One run in `folder`. `points`: its figures so far. `save`: called after each new one."""

    def __init__(
        self, folder: Path, curve: Curve, seed: int, steps: int | None, save: Callable[["LearningRun", RunState], None]
    ) -> None:
        self._folder, self._curve, self._seed, self._save = folder, curve, seed, save
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
        processes = Crew(self._folder / "logs", environment(os.environ, self._folder))
        start = [sys.executable, "-m", "echo2.coordinator.cli", "run", "--home", str(home), "--port", str(port)]
        try:
            processes.start(_COORDINATOR, start)
            state = self._first(processes)
            for name in NODES:
                node = ["--home", str(self._folder / name), "--name", name, "--listen", "/ip4/127.0.0.1/tcp/0"]
                join = [sys.executable, "-m", "echo2.node.cli", "join", state.invite, "--gpu", "cpu"]
                processes.start(name, [*join, *node])
            while state.phase != "finished":
                time.sleep(_POLL)
                state = self._look() or state
                processes.check(may_end=NODES if state.phase in ("finishing", "finished") else ())
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
        """Take new evaluations, and measure the newest version after each."""
        fresh = [one for one in state.evaluations if self._point(one.version).sampled is None]
        for one in fresh:
            self.points[one.version] = replace(self._point(one.version), sampled=one.sampled, greedy=one.greedy)
        if fresh and self._curve.measured:
            self._measure()
        if fresh:
            self._save(self, state)

    def _point(self, version: int) -> Point:
        return self.points.get(version, Point(version=version))

    def _measure(self) -> None:
        """Measure the newest version that is stored."""
        with StoreReader(self._folder / "run" / "store") as store:
            newest = store.snapshots()[-1]
        copy = self._folder / "tmp" / "measured.safetensors"
        try:
            shutil.copyfile(newest.path, copy)
        except FileNotFoundError:  # a newer one took its place
            return
        model = poker_measure.model_of(self._folder / "run" / "model", copy, "plain")
        policy = poker_measure.measure_policy(poker_measure.poker_task(self._curve.task), model, 4)
        assert policy is not None
        self.points[newest.version] = replace(
            self._point(newest.version), exploitability=policy.exploitability, legal=policy.legal
        )

    def _look(self) -> RunState | None:
        with suppress(Unreachable):
            return status.decode(status.fetch(self._url))
        return None

    def _first(self, processes: Crew) -> RunState:
        until = time.monotonic() + _START
        while time.monotonic() < until:
            processes.check()
            state = self._look()
            if state is not None and state.invite:
                return state
            time.sleep(1.0)
        raise processes.fault("the coordinator does not answer", _COORDINATOR)


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
