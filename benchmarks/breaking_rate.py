"""A real small run at a learning rate that breaks the tiny model: does the guard see it, and does the run come back?

    python -m benchmarks.breaking_rate                    # paused; then the operator's rollback at a rate that learns
    python -m benchmarks.breaking_rate --auto-rollback    # by itself, at half the rate, until it learns or stays paused
    python -m benchmarks.breaking_rate --rate 3e-4        # the demo's rate: the guard must not strike

The demo's model and task; a coordinator and two nodes as processes on loopback. The rate rises over `--warm` steps, so
that the run learns first and breaks then. Prints each evaluation, pause and rollback as the API tells it. Claim: the
guard pauses the run, and after the rollback a later evaluation is as good as `BACK` of the best.
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
from typing import Final

import msgspec

from benchmarks.load.station import free_port
from coordinator.demo.demo import environment
from coordinator.demo.demo_settings import TINY
from coordinator.demo.processes import ProcessGroup
from coordinator.metrics.views import RunState
from coordinator.run import operator_commands, setup
from coordinator.web import page, status
from p2p.errors import Unreachable

BACK: Final = 0.9
"""Share of the best held-out result that counts as recovered."""
NODES: Final = ("node-1", "node-2")
_COORDINATOR: Final = "coordinator"
_POLL, _START, _DRAIN = 1.0, 300.0, 120.0  # seconds


class BreakingRun:
    """One run in `folder`. `best`: the best sampled result before the first pause. `after`: the best one of the eras
    after it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.home = folder, folder / "run"
        self.best = self.after = 0.0
        self.kinds: list[str] = []
        self._told: set[str] = set()
        self._began = time.monotonic()
        self._url = ""

    def make(self, rate: float, warm: int, steps: int) -> None:
        """Make the run folder."""
        section = {**TINY.run, "heldout": 256, "heldout_groups": 0, "evaluate_every": 4, "steps": steps}
        flags = {
            "run": {**section, "name": "breaking rate", "engines": ["transformers/float32/cpu"]},
            "learner": {"learning_rate": rate, "warmup_steps": warm},
            "network": {"listen": ["/ip4/127.0.0.1/tcp/0"], "mdns": False},
            "https": {"listen": []},
        }
        warm_up = msgspec.structs.replace(setup.default_warm_up(), **TINY.warm_up)
        config = setup.settings_for("tiny", flags, env={})
        setup.init(self.home, "tiny", config, now=time.time_ns() // 1_000_000, warm_up=warm_up)

    def run(self, *, automatic: bool, factor: float, most: float) -> RunState:
        """Run to the end, to a pause that nobody ends, or for `most` seconds. `factor`: of the operator's one rollback;
        0: none. Raises `ProcessFault`."""
        for name in ("logs", "tmp"):
            (self._folder / name).mkdir()
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        processes = ProcessGroup(self._folder / "logs", environment(os.environ, self._folder))
        start = [sys.executable, "-m", "coordinator.cli", "run", "--home", str(self.home), "--port", str(port)]
        try:
            processes.start(_COORDINATOR, [*start, *(["--auto-rollback"] if automatic else [])])
            state = self._wait_for(lambda one: bool(one.invite), _START)
            for name in NODES:
                node = ["--home", str(self._folder / name), "--name", name, "--listen", "/ip4/127.0.0.1/tcp/0"]
                join = [sys.executable, "-m", "node.cli", "join", state.invite, "--gpu", "cpu"]
                processes.start(name, [*join, *node])
            until = time.monotonic() + most
            while state.phase not in ("finishing", "finished") and time.monotonic() < until:
                time.sleep(_POLL)
                state = self._look() or state
                processes.check(may_end=NODES if state.phase in ("finishing", "finished") else ())
                self._note(state)
                if state.trouble.paused is None or state.guard.ordered is not None:
                    continue
                if automatic or not factor:
                    break
                print(f"{self._at()} $ echo2-coord policy rollback --rate-factor {factor:g}", flush=True)
                print(operator_commands.command(self.home, "rollback", version=None, factor=factor)["said"], flush=True)
                factor = 0.0
                state = self._wait_for(lambda one: bool(one.guard.rollbacks), 60.0)
            (self._folder / "page.html").write_text(page.page(state))
            processes.end(_COORDINATOR, signal.SIGTERM, _DRAIN)
        finally:
            processes.stop()
        return state

    def _note(self, state: RunState) -> None:
        """Print what is new."""
        since = state.guard.rollbacks[0].new_version if state.guard.rollbacks else None
        for one in state.evaluations:
            left = "".join(f", left of the best {share:.0%}" for share in state.guard.left.values())
            self._say(f"version {one.version}: sampled {one.sampled:.3f}, greedy {one.greedy:.3f}", left)
            if since is not None and one.version >= since:
                self.after = max(self.after, one.sampled)
            else:
                self.best = max(self.best, one.sampled)
        paused = state.trouble.paused
        if paused is not None and self._say(f"paused at step {state.step} ({paused.kind}): {paused.why}", ""):
            self.kinds.append(paused.kind)
            print("\n".join(row for row in status.lines(state) if row.startswith(("paused", "guard"))), flush=True)
        for row in state.guard.rollbacks:
            again = f"version {row.version} came again as version {row.new_version} of era {row.new_era}"
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

    def _wait_for(self, ready: Callable[[RunState], bool], seconds: float) -> RunState:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            state = self._look()
            if state is not None and ready(state):
                return state
            time.sleep(_POLL)
        raise TimeoutError(f"the coordinator does not answer as expected; see {self._folder / 'logs'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it once; return 0 where the claim holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.breaking_rate")
    parser.add_argument("--rate", type=float, default=0.03, help="the learning rate at the end of its warm-up")
    parser.add_argument("--warm", type=int, default=80, help="steps over which it rises")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--factor", type=float, default=0.01, help="of the rate, with the operator's rollback; 0: none")
    parser.add_argument("--auto-rollback", action="store_true")
    parser.add_argument("--seconds", type=float, default=900.0, help="longest time after set-up")
    parser.add_argument("--keep", type=Path, help="folder that stays, with the logs and the last page")
    asked = parser.parse_args(arguments)
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="echo2-breaking-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        one = BreakingRun(folder)
        one.make(asked.rate, asked.warm, asked.steps)
        state = one.run(automatic=asked.auto_rollback, factor=asked.factor, most=asked.seconds)
    finally:
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    back = one.after >= BACK * one.best
    print(
        f"best before {one.best:.3f}, best after a rollback {one.after:.3f} (needs {BACK:g} of it); alarms "
        f"{', '.join(one.kinds) or 'none'}; {len(state.guard.rollbacks)} rollbacks; {state.phase} at step {state.step}"
    )
    return 0 if one.kinds and back else 1


if __name__ == "__main__":
    raise SystemExit(main())
