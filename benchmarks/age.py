"""Measure how old groups are when they are learned from, in real processes: `python -m benchmarks.age [--quick]`.

Coordinator, learner, scorer and nodes are the product's; a step lasts 2 s and a group 3 s (benchmarks/paced). Each
shape (nodes, groups at once, S, supply) is run under the window of leases, and by `room`, which leases as much as S
allows. The *floor* is ceil((broadcast + group + verdict) / period), of times measured in the run: no group is younger
at its draw, if it was begun when its version was there. A batch has nodes x at once x 2 / (3 x supply) groups, and
shapes whose batch has fewer than `LEAST_BATCH` are left out. Where the processors were busy for more than `MOST_BUSY`
of the time, what is meant to take no time takes some: there is no verdict on that shape.

Conditions (`--under`), each with bars of its own: `churn`, a third of the nodes killed and replaced per 20 steps;
`latency`, a round trip of 150 ms to the coordinator; `spread`, a slowest node whose group takes 3 steps and a quickest
one that is twenty times quicker. Under these two no node may have less than `LEAST_PART` of its rate's share of the
groups learned; under churn nodes are here for unequal times.

`--nodes`, `--at-once`, `--staleness`, `--supply`, each repeated, choose among the shapes; `--out` keeps each as a line
of JSON.
"""

import argparse
import dataclasses
import itertools
import json
import math
import sqlite3
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.bubble import MOST_BUSY
from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.harness.log_events import events
from benchmarks.paced import paced_run
from benchmarks.paced.paced_run import Pace, node_name
from echo2.coordinator.demo.demo_settings import TINY_DEMO, DemoSettings

STEP, GROUP = 2.0, 3.0
"""Seconds of a step and of a group."""
AGE_BARS: Final = {1.1: 1.2, 1.5: 0.6, 3.0: 0.4}
"""By supply, the most steps by which the mean age may exceed the floor."""
IDLE_BARS: Final = {1.1: 0.03, 1.5: 0.01, 3.0: 0.01}
"""By supply, the most by which the idle share may exceed that by room."""
LEASES_BAR: Final = 1.12
UNDER: Final = ("", "churn", "latency", "spread")
"""Conditions; empty: none."""
UNDER_AGE, UNDER_IDLE, LEAST_PART = 1.0, 0.05, 0.8
"""Under a condition: the most steps above the floor, the most idle share, and the least part of a node's share."""
REPLACED_PER, LATENCY, SPREAD, SLOWEST = 20, 0.15, 20.0, 3.0
"""Steps in which a third of the nodes is replaced; seconds of a round trip; of speeds; steps of the slowest group."""
NODES, AT_ONCE, STALENESS = (4, 12), (1, 8), (4, 8)
"""The values of the shapes, beside the supplies of `AGE_BARS`."""
LEAST_BATCH: Final = 4
STEPS: Final = 60


class Shape(NamedTuple):
    """A setting of the table. `supply`: in units of what the learner needs. `under`: a condition, see the module."""

    nodes: int
    at_once: int
    staleness: int
    supply: float
    under: str = ""

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds of a group in each node."""
        if self.under != "spread":
            return (GROUP,) * self.nodes
        return tuple(SLOWEST * STEP * SPREAD ** (-place / (self.nodes - 1)) for place in range(self.nodes))

    @property
    def batch(self) -> int:
        """Groups per step."""
        return round(self.at_once * sum(STEP / seconds for seconds in self.times) / self.supply)


class AgeFigures(NamedTuple):
    """Figures of a run, its first `LEFT_OUT` steps left out but for `leases` and `part`. `age`: mean, steps. `floor`:
    see the module. `idle`: share of the learner's time. `leases`: given and ended, per group learned. `busy`: share of
    the processors' time. `part`: the least of the nodes' groups that were learned, in units of its rate's share."""

    age: float
    floor: int
    idle: float
    leases: float
    period: float
    busy: float
    part: float


def settings_of(shape: Shape) -> DemoSettings:
    """Return the settings of a shape's runs."""
    run = {
        **TINY_DEMO.run, "group_size": 2, "batch_groups": shape.batch, "staleness": shape.staleness, "heldout": 32,
        "evaluate_every": 1000,
    }  # fmt: skip
    return dataclasses.replace(paced_run.TIMED, run=run)


def measure(shape: Shape, *, windowed: bool, steps: int, origin: Path, folder: Path) -> AgeFigures:
    """Run a shape, and return its figures. Raises `ProcessFault`."""
    pace = Pace(
        steps, shape.supply, STEP, step_seconds=STEP, windowed=windowed, batch=shape.batch, nodes=shape.nodes,
        at_once=shape.at_once, times=shape.times if shape.under == "spread" else (),
        replaced=3 * REPLACED_PER * STEP / shape.nodes if shape.under == "churn" else None,
        latency=LATENCY / 2 if shape.under == "latency" else 0.0,
    )  # fmt: skip
    first, last = paced_run.looks(pace, origin, folder)
    logged = (folder / "run" / "logs" / "coordinator.jsonl").read_text(errors="replace")
    run = paced_run.figures(pace, events(logged.splitlines()), first, last)
    latency = _latency(folder / "run" / "run.sqlite") + (last.state.broadcast.applied or 0.0)
    leases, part = _leases(folder / "run"), _least_part(folder / "run" / "run.sqlite", shape.times)
    return AgeFigures(run.age, math.ceil(latency / run.period), run.idle, leases, run.period, run.busy, part)


def _latency(database: Path) -> float:
    """Return the median of the seconds from a lease to its verdict, least ones: those of the quicker half."""
    query = "SELECT v.at - l.sent FROM verdicts v JOIN leases l ON l.id = v.lease WHERE v.verdict = 'accepted'"
    with closing(sqlite3.connect(database)) as opened:
        times = sorted(row[0] for row in opened.execute(query))
    return float(statistics.median(times[: len(times) // 2 + 1])) / 1000


def _leases(folder: Path) -> float:
    """Return the leases of training prompts per group that was drawn, over the whole run, without the groups that were
    still on their way at its end."""
    query = "SELECT count(*), coalesce(sum(state IN ('open', 'received')), 0) FROM leases WHERE counts"
    with closing(sqlite3.connect(folder / "run.sqlite")) as opened:
        given, on_their_way = opened.execute(query).fetchone()
        (buffered,) = opened.execute("SELECT count(*) FROM buffer").fetchone()
    logged = events((folder / "logs" / "coordinator.jsonl").read_text(errors="replace").splitlines())
    drawn = sum(event.fields["groups"] for event in logged if event.name == "step begun")
    ended: int = given - on_their_way - max(0, buffered - drawn)
    return ended / max(1, int(drawn))


def _least_part(database: Path, times: Sequence[float]) -> float:
    """Return the least part that a node has of its rate's share of the groups drawn; 0 where one has none. `times`: of
    the nodes, in the order in which they were started."""
    query = (
        "SELECT name, count(*) FROM draws JOIN leases ON id = lease JOIN nodes ON nodes.key = leases.node GROUP BY name"
    )
    with closing(sqlite3.connect(database)) as opened:
        drawn = Counter(dict(opened.execute(query).fetchall()))
    rates = {node_name(place): 1 / seconds for place, seconds in enumerate(times)}
    whole, all_rates = max(1, sum(drawn[name] for name in rates)), sum(rates.values())
    return min(drawn[name] / whole / (rate / all_rates) for name, rate in rates.items())


def claims(shape: Shape, window: AgeFigures, room: AgeFigures) -> list[Claim]:
    """Return the claims of a shape."""
    name = f"{shape.nodes} x {shape.at_once}, S = {shape.staleness}, {shape.supply:g} x {shape.under}".strip()
    above, idle = window.age - window.floor, window.idle - room.idle
    if shape.under:
        starved = Claim(f"{name}: least part of a share", window.part, "1", LEAST_PART)
        return [
            Claim(f"{name}: age above the floor", above, "steps", UNDER_AGE, at_most=True),
            Claim(f"{name}: idle", window.idle, "the learner's time", UNDER_IDLE, at_most=True),
            *([] if shape.under == "churn" else [starved]),
        ]
    return [
        Claim(f"{name}: age above the floor", above, "steps", AGE_BARS[shape.supply], at_most=True),
        Claim(f"{name}: idle above room's", idle, "the learner's time", IDLE_BARS[shape.supply], at_most=True),
        Claim(f"{name}: leases per learned group", window.leases, "1", LEASES_BAR, at_most=True),
    ]


def play(shape: Shape, steps: int) -> tuple[AgeFigures, AgeFigures]:
    """Return the figures of a shape under the window and by room."""
    with tempfile.TemporaryDirectory(prefix="echo2-age-") as folder:
        place = Path(folder)
        origin = paced_run.made(place / "made", settings_of(shape))
        window, room = (
            measure(shape, windowed=windowed, steps=steps, origin=origin, folder=place / name)
            for name, windowed in (("window", True), ("room", False))
        )
    return window, room


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and the closing lines; return the exit status, 2 where no shape has a verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 nodes with 8 groups at once, S = 4, 1.5 x, 25 steps")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--nodes", type=int, choices=NODES, action="append")
    parser.add_argument("--at-once", type=int, choices=AT_ONCE, action="append")
    parser.add_argument("--staleness", type=int, choices=STALENESS, action="append")
    parser.add_argument("--supply", type=float, choices=tuple(AGE_BARS), action="append")
    parser.add_argument("--under", choices=UNDER, default="", help="a condition")
    parser.add_argument("--out", type=Path, help="a file to which each shape's figures are added")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        shapes, steps = [Shape(4, 8, 4, 1.5)], 25
    else:
        every = itertools.product(
            chosen.nodes or NODES, chosen.at_once or AT_ONCE, chosen.staleness or STALENESS, chosen.supply or AGE_BARS
        )
        shapes, steps = (
            [shape for one in every if (shape := Shape(*one, chosen.under)).batch >= LEAST_BATCH],
            chosen.steps,
        )
    bench.header("ages of groups at given times, in real processes", ["torch"])
    made, judged = [], list[Claim]()
    for shape in shapes:
        window, room = play(shape, steps)
        made.append((shape, window, room))
        busy = max(window.busy, room.busy)
        print(f"{shape} batch {shape.batch}: window {window}, room {room}", flush=True)
        if busy <= MOST_BUSY:
            judged += claims(shape, window, room)
        else:
            print(f"no verdict: the processors were busy for {busy:.0%} of the time, at most {MOST_BUSY:.0%}")
        if chosen.out is not None:
            line = {"shape": shape._asdict(), "window": window._asdict(), "room": room._asdict()}
            with chosen.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    bench.table(
        ["nodes", "at once", "S", "supply", "floor", "age", "room: age", "idle", "room: idle", "leases", "busy"],
        [
            (str(s.nodes), str(s.at_once), str(s.staleness), f"{s.supply:g}", str(w.floor), f"{w.age:.2f}",
             f"{r.age:.2f}", f"{w.idle:.3f}", f"{r.idle:.3f}", f"{w.leases:.2f}", f"{max(w.busy, r.busy):.2f}")
            for s, w, r in made
        ],
    )  # fmt: skip
    return bench.close(judged) if judged else 2


if __name__ == "__main__":
    sys.exit(main())
