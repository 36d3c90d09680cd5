"""Learning curves of SmolLM2-135M through real nodes, as processes on loopback.

    python -m benchmarks.curves run gcd --seed 1 --folder FOLDER    # hours on two cores; a stopped run goes on
    python -m benchmarks.curves draw                                # docs/results/*.svg and tables

`run` writes docs/results/CURVE-seedN.json as it goes. Needs the extras `smollm2`, `gym` and `poker`.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.curves import drawn
from benchmarks.curves.learning_run import LearningRun
from benchmarks.curves.plans import CURVES
from benchmarks.curves.series import Series, read_all, write
from benchmarks.harness import bench
from echo2.coordinator.metrics.views import RunState

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def learn(name: str, seed: int, folder: Path, steps: int | None, out: Path) -> None:
    """Run a curve with one seed, and write its series."""
    from benchmarks.curves.base_model import make_base

    curve, base = CURVES[name], folder / f"{name}-base"
    make_base(base, curve)
    home = folder / f"{name}-seed{seed}"
    home.mkdir(exist_ok=True)
    path = out / f"{name}-seed{seed}.json"
    earlier = [one for one in read_all(out) if (one.curve, one.seed) == (name, seed) and (home / "run").exists()]
    before, began = sum(one.seconds for one in earlier), time.monotonic()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout

    def save(run: LearningRun, state: RunState) -> None:
        points = [run.points[version] for version in sorted(run.points)]
        one = Series(
            curve=name, seed=seed, commit=commit.strip(), seconds=before + time.monotonic() - began,
            accepted=state.accepted, refused=sum(state.refused.values()), idle=state.idle, points=points,
            rewards=[step.reward for step in state.steps],
        )  # fmt: skip
        write(path, one)
        print(f"step {state.step}: {points[-1]}", flush=True)

    run = LearningRun(home, curve, seed, steps, save)
    save(run, run.run(base, {point.version: point for one in earlier for point in one.points}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("curve", choices=sorted(CURVES))
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--steps", type=int, help="instead of the curve's own")
    run.add_argument("--folder", type=Path, required=True, help="for models and runs")
    draw = commands.add_parser("draw")
    for one in (run, draw):
        one.add_argument("--out", type=Path, default=RESULTS, help="docs/results unless told otherwise")
    order = parser.parse_args(arguments)
    if order.command == "draw":
        drawn.write(order.out)
        return 0
    order.folder.mkdir(parents=True, exist_ok=True)
    learn(order.curve, order.seed, order.folder, order.steps, order.out)
    return 0


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
