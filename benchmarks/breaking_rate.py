"""A real small run at a learning rate that breaks the tiny model: does the guard see it, and does the run come back?

    python -m benchmarks.breaking_rate                    # paused; then the operator's rollback at a rate that learns
    python -m benchmarks.breaking_rate --auto-rollback    # by itself, at half the rate each time, until it learns
    python -m benchmarks.breaking_rate --stays            # every half breaks too: three rollbacks to one version
    python -m benchmarks.breaking_rate --rate 3e-4        # the demo's rate: the guard must not strike

The demo's model and task; a coordinator and two nodes as processes on loopback. The rate rises over `--warm` steps, so
that the run learns first and breaks then. With `--auto-rollback` and `--stays` it learns at the demo's rate until the
guard has a best version; then the coordinator ends, and starts again with `run --auto-rollback` at `HALVED` or at
`BREAKS`, without a warm-up. Prints each evaluation, pause and rollback as the API tells it.

Claims: the guard strikes, and an evaluation after the last rollback is as good as `BACK` of the best before the first.
`--auto-rollback`: that evaluation is of a version `FURTHER` steps on. `--stays`: one version comes again three times,
each time at half the rate, and the fourth alarm leaves the run paused, without a step.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.harness.crew import Crew
from benchmarks.load.station import free_port
from echo2.coordinator.demo.demo import environment
from echo2.coordinator.demo.demo_settings import TINY_DEMO
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.run import first_model, operator_commands, setup
from echo2.coordinator.training.run_guard import MOST_ROLLBACKS
from echo2.coordinator.web import page
from echo2.p2p.errors import Unreachable

BACK: Final = 0.9
"""Share of the best held-out result that counts as recovered."""
LEARNING: Final = 16
"""Least steps at the demo's rate before the restart."""
HALVED, BREAKS = 0.01, 1.0
"""Learning rates after it. A step changes each weight by up to as much."""
FURTHER: Final = 8
"""Steps after the last rollback from which an evaluation counts."""
STAYS: Final = 30.0
"""Seconds for which a run must stay paused."""
NODES: Final = ("node-1", "node-2")
_COORDINATOR: Final = "coordinator"
_POLL, _START, _DRAIN = 0.5, 300.0, 120.0  # seconds


class Orders(NamedTuple):
    """The conditions of a run. `restart`: the rate of its second start, with `--auto-rollback`; None: there is none.
    `stays`: it is one that breaks each time. `factor`: of the operator's one rollback; 0: none. `seconds`: longest time
    after set-up."""

    restart: float | None
    stays: bool
    factor: float
    seconds: float


class BreakingRun:
    """One run in `folder`. `alarms`: kinds of those that left it paused. `idled`: steps made while it was left paused
    for `STAYS`; None: it was not."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.home = folder, folder / "run"
        self.alarms: list[str] = []
        self.idled: int | None = None
        self._told: set[str] = set()
        self._began = time.monotonic()
        self._port = free_port()
        self._url = f"http://127.0.0.1:{self._port}"

    def make(self, rate: float, warm: int, steps: int, skill: int) -> None:
        """Make the run folder. `skill`: steps of the first model's warm-up."""
        section = {**TINY_DEMO.run, "heldout": 256, "evaluate_every": 4, "steps": steps}
        flags = {
            "run": {**section, "name": "breaking rate", "engines": ["transformers/float32/cpu"]},
            "learner": {"learning_rate": rate, "warmup_steps": warm},
            "network": {"listen": [f"/ip4/127.0.0.1/tcp/{free_port()}"], "mdns": False},
            "https": {"listen": []},
        }
        warm_up = msgspec.structs.replace(first_model.default_warm_up(), **{**TINY_DEMO.warm_up, "steps": skill})
        config = setup.settings_for("tiny", flags, env={})
        setup.init(self.home, "tiny", config, now=time.time_ns() // 1_000_000, warm_up=warm_up)

    def run(self, orders: Orders) -> RunState:
        """Run to the end, to a pause that nobody ends, or for `orders.seconds`. Raises `ProcessFault`."""
        for name in ("logs", "tmp"):
            (self._folder / name).mkdir()
        processes = Crew(self._folder / "logs", environment(os.environ, self._folder))
        try:
            self._start(processes, _COORDINATOR)
            state = self._wait_for(processes, lambda one: bool(one.versions), _START)
            for name in NODES:
                node = ["--home", str(self._folder / name), "--name", name, "--listen", "/ip4/127.0.0.1/tcp/0"]
                join = [sys.executable, "-m", "echo2.node.cli", "join", state.invite, "--gpu", "cpu"]
                processes.start(name, [*join, *node])
            coordinator = _COORDINATOR
            if orders.restart is not None:
                coordinator = self._restarted(processes, orders.restart, orders.seconds)
            state = self._watch(processes, state, orders)
            (self._folder / "page.html").write_text(page.page(state))
            processes.end(coordinator, signal.SIGTERM, _DRAIN)
        finally:
            processes.stop()
        return state

    def _restarted(self, processes: Crew, rate: float, seconds: float) -> str:
        """Wait until the run has learned, and start the coordinator again; return the process's name."""
        state = self._wait_for(processes, lambda one: one.step >= LEARNING and bool(one.guard.left), seconds)
        processes.end(_COORDINATOR, signal.SIGTERM, _DRAIN)
        words = ["--auto-rollback", "--set", f"learner.learning_rate={rate:g}", "--set", "learner.warmup_steps=0"]
        print(f"{self._at()} step {state.step}: $ echo2-coord run {' '.join(words)}", flush=True)
        again = f"{_COORDINATOR}-again"
        self._start(processes, again, words)
        self._wait_for(processes, lambda one: bool(one.invite), _START)
        return again

    def _start(self, processes: Crew, name: str, words: Sequence[str] = ()) -> None:
        start = [
            sys.executable,
            "-m",
            "echo2.coordinator.cli",
            "run",
            "--home",
            str(self.home),
            "--port",
            str(self._port),
        ]
        processes.start(name, [*start, *words])

    def _watch(self, processes: Crew, state: RunState, orders: Orders) -> RunState:
        """Look at the run until it ends or stays paused."""
        until, factor = time.monotonic() + orders.seconds, orders.factor if orders.restart is None else 0.0
        while state.phase not in ("finishing", "finished") and time.monotonic() < until:
            time.sleep(_POLL)
            state = self._look() or state
            processes.check(may_end=NODES if state.phase in ("finishing", "finished") else ())
            self._note(state)
            if state.trouble.paused is None or state.guard.ordered is not None:
                continue
            if not factor:
                return self._left_alone(state)
            print(f"{self._at()} $ echo2-coord policy rollback --rate-factor {factor:g}", flush=True)
            print(operator_commands.command(self.home, "rollback", version=None, factor=factor)["said"], flush=True)
            factor = 0.0
            state = self._wait_for(processes, lambda one: bool(one.guard.rollbacks), 60.0)
        return state

    def _left_alone(self, state: RunState) -> RunState:
        """Leave a paused run alone for `STAYS` seconds."""
        until, last = time.monotonic() + STAYS, state
        while time.monotonic() < until and last.trouble.paused is not None:
            time.sleep(_POLL)
            last = self._look() or last
        self.idled = last.step - state.step
        still = "still paused" if last.trouble.paused else "no longer paused"
        print(f"{self._at()} {STAYS:g} s later: {still}, {self.idled} steps made", flush=True)
        return last

    def _note(self, state: RunState) -> None:
        """Print what is new."""
        for one in state.evaluations:
            left = "".join(f", left of the best {share:.0%}" for share in state.guard.left.values())
            self._say(f"version {one.version}: sampled {one.sampled:.3f}, greedy {one.greedy:.3f}", left)
        paused = state.trouble.paused
        if paused is not None and self._say(f"paused at step {state.step} ({paused.kind}): {paused.why}", ""):
            self.alarms.append(paused.kind)
            print("\n".join(row for row in status.lines(state) if row.startswith(("paused", "guard"))), flush=True)
        for row in state.guard.rollbacks:
            again = f"version {row.version} came again as version {row.new_version}"
            self._say(f"{again}, rate x {row.rate:g}, {'by itself' if row.automatic else 'by the operator'}", "")

    def _say(self, words: str, more: str) -> bool:
        if words in self._told:
            return False
        self._told.add(words)
        print(f"{self._at()} {words}{more}", flush=True)
        return True

    def _at(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"

    def _look(self) -> RunState | None:
        with suppress(Unreachable):
            return status.decode(status.fetch(self._url))
        return None

    def _wait_for(self, processes: Crew, ready: Callable[[RunState], bool], seconds: float) -> RunState:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            processes.check()
            state = self._look()
            if state is not None:
                self._note(state)
                if ready(state):
                    return state
            time.sleep(_POLL)
        raise processes.fault("the coordinator does not answer as expected", *processes.names())


def best_results(state: RunState, further: int) -> tuple[float, float]:
    """Return the best sampled result before the first rollback, and after the last one, `further` steps on at least."""
    rolled = state.guard.rollbacks
    first, last = (rolled[0].new_version, rolled[-1].new_version + further) if rolled else (sys.maxsize, sys.maxsize)
    before = [one.sampled for one in state.evaluations if one.version < first]
    after = [one.sampled for one in state.evaluations if one.version >= last]
    return max(before, default=0.0), max(after, default=0.0)


def closing(one: BreakingRun, state: RunState, orders: Orders) -> list[Claim]:
    """Return the claims about a run that broke."""
    rolled = state.guard.rollbacks
    best, after = best_results(state, 0 if orders.stays else FURTHER)
    claims = [
        Claim("alarms", float(max(len(one.alarms), len(rolled))), "one alarm", 1.0),
        Claim("best after the last rollback", after / max(best, 1e-9), "the best before", BACK),
    ]
    if orders.restart is not None:
        halves = [row.rate for row in rolled] == [0.5 ** (number + 1) for number in range(len(rolled))]
        by_itself = sum(row.automatic for row in rolled) if halves else 0
        claims.append(Claim("rollbacks by itself, each at half the rate", float(by_itself), "one", 1.0))
    if orders.stays:
        claims += [
            Claim("rollbacks, then a pause", float(len(rolled)), f"{MOST_ROLLBACKS} to one version", MOST_ROLLBACKS),
            Claim("steps while left paused", 1.0 if one.idled is None else float(one.idled), "none", 0, at_most=True),
        ]
    return claims


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it once; return 0 where the claims hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.breaking_rate")
    parser.add_argument("--rate", type=float, default=0.03, help="the learning rate at the end of its warm-up")
    parser.add_argument("--warm", type=int, default=80, help="steps over which it rises")
    parser.add_argument("--steps", type=int, help="of the run: 160, with --auto-rollback 240, with --stays 1,000")
    parser.add_argument(
        "--skill", type=int, default=TINY_DEMO.warm_up["steps"], help="steps of the first model's warm-up"
    )
    parser.add_argument("--factor", type=float, default=0.01, help="of the rate, with the operator's rollback; 0: none")
    parser.add_argument("--auto-rollback", action="store_true", help="learn, then start again at a rate that breaks")
    parser.add_argument("--stays", action="store_true", help="the same at a rate whose halves break too")
    parser.add_argument("--seconds", type=float, default=1500.0, help="longest time after set-up")
    parser.add_argument("--keep", type=Path, help="folder that stays, with the logs and the last page")
    asked = parser.parse_args(arguments)
    restart = BREAKS if asked.stays else HALVED if asked.auto_rollback else None
    orders = Orders(restart, asked.stays, asked.factor, asked.seconds)
    tiny = TINY_DEMO.learner["learning_rate"], TINY_DEMO.learner["warmup_steps"]
    rate, warm = (asked.rate, asked.warm) if restart is None else tiny
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="echo2-breaking-"))
    folder.mkdir(parents=True, exist_ok=True)
    bench.header("a rate that breaks the tiny model", ["torch"])
    try:
        one = BreakingRun(folder)
        one.make(rate, warm, asked.steps or (1000 if asked.stays else 240 if asked.auto_rollback else 160), asked.skill)
        state = one.run(orders)
    finally:
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    best, after = best_results(state, 0)
    print(
        f"best before {best:.3f}, after the last rollback {after:.3f}; left paused by "
        f"{', '.join(one.alarms) or 'nothing'}; {len(state.guard.rollbacks)} rollbacks; "
        f"{state.phase} at step {state.step}"
    )
    return bench.close(closing(one, state, orders))


if __name__ == "__main__":
    raise SystemExit(main())
