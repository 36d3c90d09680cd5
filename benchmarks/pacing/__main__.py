"""Compare the window of leases with the room of the versions alone: `python -m benchmarks.pacing [--quick]`.

In simulated time, with what a coordinator can see (benchmarks/plays/simulated_run.py).

Claims, each over equal nodes (8 and 32), nodes of tenfold spread in speed, churn (a mean life of 20 steps, 5 away) and
hard churn (a life of 5), with one and with eight groups at once in each node, a version every step, S = 4. A node that
is back gives back those of its leases that are still open.

1. mean age of the groups learned, against `room`: geometric mean at 1.5 and at 3 times the supply needed;
2. the learner's idle share above that under `room`: the largest difference at 1.1, 1.5 and 3 times the supply, and
   under churn at any of them: while too few nodes are here, only a stock of old groups keeps the learner busy;
3. leases per group learned, against `room`: geometric mean at 1.5 times the supply.

With c groups at once in each node the batch has 16 c groups, so a turnaround is as long in steps as with one. Printed
without a bar: versions every 2 and 3 steps; and the same table where nodes ask for money and activation chooses the
cheapest for 1.1 and 1.5 times the need (coordinator/market/activation.py). `--seeds` and `--steps`: runs per cell
with a bar (others have two), and steps per run; idle shares under churn differ by some percent from seed to seed.
`--rival`: these two tables, without bars, of a bound by the least latency (bound_window.py) in place of `room`.
`--parts`: another table, the least part of its rate's share that a node has (least_parts.py); three seeds, or one.
`--starts`: no table, but so many runs from made-up measurements and through a change (random_starts.py); none may stay
unsettled.
"""

import argparse
import math
import random
import statistics
import sys
from typing import NamedTuple

from benchmarks.harness.bench import Claim, close, header, table
from benchmarks.pacing import least_parts
from benchmarks.pacing.bound_window import BoundWindow
from benchmarks.pacing.random_starts import unsettled
from benchmarks.plays.comparison import NANO, PRICE_SPREAD
from benchmarks.plays.run_scene import RunResult, RunScene, fleet
from benchmarks.plays.simulated_run import SimulatedRun

BATCH = 16
SUPPLIES = (1.1, 1.5, 3.0)
AGE_BARS = {1.5: 0.70, 3.0: 0.55}
IDLE_BARS = {1.1: 0.04, 1.5: 0.01, 3.0: 0.01}
CHURN_IDLE_BAR = 0.05
"""As of benchmarks.age."""
LEASES_BAR = 0.90
GAMMAS = (1.1, 1.5)


class Fleet(NamedTuple):
    """A fleet of the table. `spread`: tenfold. `life`: mean steps until a node leaves."""

    name: str
    spread: bool
    nodes: int
    life: float = math.inf


FLEETS = (
    Fleet("8 equal", False, 8),
    Fleet("32 equal", False, 32),
    Fleet("tenfold spread", True, 32),
    Fleet("churn", True, 32, 20.0),
    Fleet("hard churn", True, 32, 5.0),
)


class Block(NamedTuple):
    """The terms of all rows of a table. `gamma`: reserve with which activation chooses; None: everybody is active."""

    at_once: int = 1
    publish_every: int = 1
    gamma: float | None = None

    @property
    def title(self) -> str:
        chosen = "" if self.gamma is None else f", nodes chosen for {self.gamma:g} times the need"
        batch = f"{BATCH * self.at_once} groups per step"
        return f"{self.at_once} at once per node, {batch}, a version every {self.publish_every} steps{chosen}"


BLOCKS = (
    *(Block(at_once, publish_every) for publish_every in (1, 2, 3) for at_once in (1, 8)),
    *(Block(at_once, gamma=gamma) for gamma in GAMMAS for at_once in (1, 8)),
)


JUDGED = 2
"""Of the blocks, those that have bars."""
OTHERS = 2
"""Seeds of the others."""


class Figures(NamedTuple):
    """Means over the runs of a cell: see `RunResult`."""

    age: float
    idle: float
    leases: float


class Cell(NamedTuple):
    """A row of the table: a fleet under both rules."""

    fleet: Fleet
    supply: float
    block: Block
    room: Figures
    window: Figures


def cell(one: Fleet, supply: float, block: Block, steps: int, seeds: int, *, rival: bool = False) -> Cell:
    """Simulate a fleet under both rules, with the same seeds. `rival`: the bound is the one beside the window."""
    here = one.life / (one.life + RunScene(()).away) if math.isfinite(one.life) else 1.0
    results: dict[bool, list[RunResult]] = {False: [], True: []}
    for seed in range(seeds):
        batch, chances = BATCH * block.at_once, random.Random(seed)
        scene = RunScene(
            fleet(one.spread, one.nodes, supply / here, batch, block.at_once, seed),
            at_once=block.at_once,
            batch=batch,
            publish_every=block.publish_every,
            life=one.life,
            gives_back=True,
        )
        if block.gamma is not None:
            asks = tuple(int(NANO * chances.lognormvariate(0.0, PRICE_SPREAD)) for _ in scene.turnarounds)
            scene = scene._replace(asks=asks, gamma=block.gamma, order="cheapest")
        for windowed, runs in results.items():
            run = SimulatedRun(scene, windowed=windowed or rival, seed=seed)
            if rival and not windowed:
                run.lease_window = BoundWindow(scene.staleness, scene.batch)
            runs.append(run.run(steps))
    return Cell(one, supply, block, _mean(results[False]), _mean(results[True]))


def _mean(runs: list[RunResult]) -> Figures:
    means = (statistics.mean(values) for values in zip(*((run.age, run.idle, run.leases) for run in runs), strict=True))
    return Figures(*means)


def claims(cells: list[Cell], *, churn: bool = True) -> list[Claim]:
    """Return claims 1 to 3 over the cells of one version per step with everybody active. `churn`: with that of churn,
    of which one seed of 40 steps says little."""
    result, plain = [], [one for one in cells if one.block.publish_every == 1 and one.block.gamma is None]
    judged = {supply: [one for one in plain if one.supply == supply] for supply in SUPPLIES}
    for supply, bar in AGE_BARS.items():
        ages = statistics.geometric_mean(one.window.age / one.room.age for one in judged[supply])
        result.append(Claim(f"age at {supply:g} x", ages, "room", bar, at_most=True))
    for supply, bar in IDLE_BARS.items():
        idle = max(_idle_above(one) for one in judged[supply] if math.isinf(one.fleet.life))
        result.append(Claim(f"idle above room's at {supply:g} x", idle, "the learner's time", bar, at_most=True))
    if churn:
        idle = max(_idle_above(one) for one in plain if math.isfinite(one.fleet.life))
        result.append(Claim("idle above room's under churn", idle, "the learner's time", CHURN_IDLE_BAR, at_most=True))
    leases = statistics.geometric_mean(one.window.leases / one.room.leases for one in judged[1.5])
    result.append(Claim("leases per group at 1.5 x", leases, "room", LEASES_BAR, at_most=True))
    return result


def _idle_above(one: Cell) -> float:
    return one.window.idle - one.room.idle


def play_starts(starts: int) -> list[Claim]:
    """Play so many starts; print those that do not settle, and return the claim."""
    left = set[int]()
    for seed in range(starts):
        for one in unsettled(seed):
            left.add(seed)
            print(f"seed {one.seed}, after {one.after}: age {one.age:.2f}, idle {one.idle:.3f}", flush=True)
    print(f"{starts} starts, with a change each")
    return [Claim("starts that do not settle", len(left) / starts, "all", 0.0, at_most=True)]


def play_parts(seeds: int) -> list[Claim]:
    """Play the fleets of least_parts.py; print the table, and return the claims."""
    steps = least_parts.STEPS
    rows = [least_parts.parts_of(nodes, supply, steps, seeds) for nodes in least_parts.FLEETS for supply in SUPPLIES]
    print(f"least part of its rate's share that a node has; {steps} steps, {seeds} seeds, S = 8\n")
    table(
        ("nodes", "supply", "room", "window"),
        [(one.nodes, f"{one.supply:g}", f"{one.room:.2f}", f"{one.window:.2f}") for one in rows],
    )
    return least_parts.claims_of(rows)


def main() -> int:
    """Print the table and the closing lines; return the exit status."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--quick", action="store_true", help="one group at once, a version per step, 40 steps, 1 seed")
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--rival", action="store_true", help="two tables, with a bound by the least latency")
    options.add_argument("--starts", type=int, help="runs from made-up measurements, in place of the tables")
    options.add_argument("--parts", action="store_true", help="the least parts of nodes twenty times apart in speed")
    options.add_argument("--bars", action="store_true", help="the two tables that have bars alone")
    chosen = options.parse_args()
    steps, seeds = (40, 1) if chosen.quick else (chosen.steps, chosen.seeds)
    other = "bound" if chosen.rival else "room"
    header(f"the window of leases against {other} alone, simulated", [])
    if chosen.starts is not None:
        return close(play_starts(chosen.starts))
    if chosen.parts:
        return close(play_parts(1 if chosen.quick else 3))
    print(
        f"{steps} steps, {seeds} seeds per cell with a bar; S = 4; age and idle over the last four fifths\n", flush=True
    )
    cells = []
    for block in BLOCKS[:1] if chosen.quick else BLOCKS[:JUDGED] if chosen.bars or chosen.rival else BLOCKS:
        runs = seeds if block in BLOCKS[:JUDGED] else min(seeds, OTHERS)
        made = [cell(one, supply, block, steps, runs, rival=chosen.rival) for one in FLEETS for supply in SUPPLIES]
        print(block.title)
        table(
            ("fleet", "supply", f"{other}: age", "idle", "leases", "window: age", "idle", "leases"),
            [(one.fleet.name, f"{one.supply:g}", *_cells(one.room), *_cells(one.window)) for one in made],
        )
        cells += made
    return 0 if chosen.rival else close(claims(cells, churn=not chosen.quick))


def _cells(one: Figures) -> tuple[str, str, str]:
    return f"{one.age:.2f}", f"{one.idle:.1%}", f"{one.leases:.2f}"


if __name__ == "__main__":
    sys.exit(main())
