"""Measure the learner's idle share against the nodes' supply: `python -m benchmarks.bubble [--quick]`.

Coordinator, learner, scorer and four equal nodes are real processes (benchmarks/paced). A step lasts 2 s, by sleep; a
node's groups come at a given rate. So the supply mu is known in units of mu_min, the least that keeps the learner busy
(figure 3c of arXiv 2602.02192): with more than mu_min it should hardly wait, and with less for 1 - mu / mu_min of its
time. A first run with thrice the supply measures the period of a step. Other work on the machine would delay what is
meant to take no time: where the processors were busy for more than `MOST_BUSY`, there is no verdict, and the exit
status is 2.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.paced.paced_run import Pace, PacedFigures, made, run_paced

SUPPLIES: Final = (1.1, 0.8)
MOST_BUSY: Final = 0.7
CALIBRATING: Final = 9
"""Steps of the run that measures the period."""


def closing(enough: PacedFigures, short: PacedFigures) -> list[Claim]:
    """Return the claims. `enough`, `short`: the figures at both supplies."""
    theory = max(0.0, 1 - short.supply)
    return [
        Claim(f"idle at {SUPPLIES[0]} mu_min", enough.idle, "the learner's time", 0.05, at_most=True),
        Claim(
            f"idle at {SUPPLIES[1]} mu_min, off 1 - mu / mu_min", abs(short.idle - theory), "the learner's time", 0.05,
            at_most=True,
        ),
    ]  # fmt: skip


def verdict(runs: Sequence[PacedFigures], claims: Sequence[Claim]) -> int:
    """Print the closing lines; return the exit status, 2 where the processors were too busy."""
    status, busy = bench.close(claims), max(one.busy for one in runs)
    if busy <= MOST_BUSY:
        return status
    print(f"no verdict: the processors were busy for {100 * busy:.0f} % of the time, at most {100 * MOST_BUSY:.0f} %")
    return 2


def table(runs: Sequence[tuple[str, PacedFigures]]) -> None:
    """Print the figures of runs by name."""
    columns = ["run", "mu / mu_min", "step, s", "idle", "accepted / learned", "mean age, steps", "processors busy"]
    bench.table(
        columns,
        [(name, one.supply, one.period, one.idle, one.accepted, one.age, one.busy) for name, one in runs],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 steps per run instead of 60")
    steps = 20 if parser.parse_args(arguments).quick else 60
    bench.one_thread()
    bench.header(f"bubble: the learner's idle share against supply, {steps} steps", ["torch"])
    with tempfile.TemporaryDirectory(prefix="echo2-bubble-") as folder:
        place = Path(folder)
        origin = made(place / "made")
        period = run_paced(Pace(CALIBRATING, 3.0, 2.0), origin, place / "period").period
        runs = [
            run_paced(Pace(steps, supply, period), origin, place / f"supply-{supply}") for supply in SUPPLIES
        ]  # fmt: skip
    table([(f"{supply} mu_min", one) for supply, one in zip(SUPPLIES, runs, strict=True)])
    return verdict(runs, closing(*runs))


if __name__ == "__main__":
    sys.exit(main())
