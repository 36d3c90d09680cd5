"""Measure a step of the learner against TRL's: CPU time and peak memory of a process each, one thread, float32.

The model has SmolLM2-135M's shape and random weights; both train on the same groups, and neither generates. The anchor
is TRL's own loss with its head on the scored positions alone, and AdamW (benchmarks/learner/trl_step.py). It needs
`pip install trl==1.16.0`.

    mixed   a prompt of 64 tokens, completions of up to 96, their mean 50
    equal   a prompt of 16 tokens, all completions 96: the least to gain by leaving out padding
    again   mixed, and both compute their layers again in the backward pass, as on a GPU
    state   bytes per parameter that stay between two steps, gradients included

Of `again` the floor of each is printed too, what no step of it can do without: the libraries, the state, and the inputs
of layers that are kept for the backward pass.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from functools import partial
from typing import Any

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.learner.workload import EQUAL, MIXED, Shape

AGAIN = "again"
BARS = {MIXED.name: (0.67, 0.75), EQUAL.name: (1.0, 0.85), AGAIN: (0.67, 0.7)}
"""Row -> most time and memory, as parts of TRL's."""


def measured(candidate: str, shape: Shape, layers: int, *, kept: bool) -> dict[str, Any]:
    """Run a candidate in a process of its own, for two steps. `kept`: argument of `one_process`."""
    command = [sys.executable, "-m", "benchmarks.learner.one_process", candidate, shape.name, str(layers), "2"]
    command.append("1" if kept else "0")
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    peak = answer["peak"] / 2**20
    print(
        f"{shape.name if kept else AGAIN}, {candidate}: {answer['seconds'][-1]:.1f} CPU s, {peak:,.0f} MiB", flush=True
    )
    if not kept:
        parts = ", ".join(f"{name} {nbytes / 2**20:,.0f}" for name, nbytes in answer["floor"].items())
        least = sum(answer["floor"].values()) / 2**20
        print(f"    its floor: {least:,.0f} MiB ({parts}), {least / peak:.3f} of its peak", flush=True)
    return answer


def claims_of(row: str, shape: Shape, layers: int, rounds: int) -> tuple[list[Claim], list[list[object]], float]:
    """Measure both on a shape, `rounds` times; return the claims, rows of the table and our state. `row`: of `BARS`."""
    ours, trl = (partial(measured, one, shape, layers, kept=row != AGAIN) for one in ("ours", "trl"))
    pairs = [(ours(), trl()) for _ in range(rounds)]
    time = statistics.median(one["seconds"][-1] / other["seconds"][-1] for one, other in pairs)
    memory = statistics.median(one["peak"] / other["peak"] for one, other in pairs)
    rows: list[list[object]] = [
        [row, name, min(pair[place]["seconds"][-1] for pair in pairs), pairs[0][place]["peak"] / 2**20]
        for place, name in enumerate(("echo2", "TRL"))
    ]
    bar_time, bar_memory = BARS[row]
    claims = [
        Claim(f"{row}, time", time, "TRL's step", bar_time, at_most=True),
        Claim(f"{row}, memory", memory, "TRL's peak", bar_memory, at_most=True),
    ]
    return claims, rows, pairs[0][0]["state"]


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learner", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 layers of 30 and one round")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    order = parser.parse_args()
    if importlib.util.find_spec("trl") is None:
        print("TRL is not installed: pip install trl==1.16.0", file=sys.stderr)
        return 1
    bench.header("a step of the learner", ["torch", "transformers", "trl"])
    claims: list[Claim] = []
    rows: list[list[object]] = []
    for row, shape in ((MIXED.name, MIXED), (EQUAL.name, EQUAL), (AGAIN, MIXED)):
        of_shape, some, state = claims_of(row, shape, 4 if order.quick else 30, 1 if order.quick else order.rounds)
        claims, rows = claims + of_shape, rows + some
    bench.table(("batch", "learner", "CPU s of a step", "peak MiB"), rows)
    return bench.close([*claims, Claim("state", state, "bytes per parameter", 18.1, at_most=True)])


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
