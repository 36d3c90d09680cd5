"""Play runs from made-up measurements through changes, and tell where the window of leases does not settle.

The window is told by the events of a simulated run alone (benchmarks/plays/simulated_run.py). A run begins with
windows, waits and steps that are drawn at random. Then one of five changes follows, drawn as well: its nodes come and
go, its learner stands, its slowest node stalls, its steps become ten times as long and then as short as they were, or
its slowest node makes one group after the other where it made several together. A run has *settled* if, once the window
has forgotten what was before, the learner hardly waits and groups are hardly older than their latency makes them.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from benchmarks.plays.run_scene import RunScene, fleet
from benchmarks.plays.simulated_node import SimulatedNode
from benchmarks.plays.simulated_run import SimulatedRun
from echo2.coordinator.leases.lease_window import REMEMBERED_DRAWS

SETTLED: Final = 2 * REMEMBERED_DRAWS + 12
"""Steps after a change until the window has forgotten what was before, and what was leased then is drawn: half of the
steps of which T is the median, the draws that were measured by them, and S + 1 batches that wait."""
COUNTED: Final = 16
MOST_IDLE: Final = 0.2
ABOVE_FLOOR: Final = 1.5
"""Steps by which the mean age may exceed the latency, rounded up."""
SUPPLY: Final = 2.0
STEP_SECONDS: Final = 10.0
STALLED: Final = 20
STOOD: Final = 20
"""Steps for which the learner stands, and in which nodes come and go."""


class Unsettled(NamedTuple):
    """A change after which a run did not settle. `after`: name of the change. `age`: mean, in steps. `idle`: share of
    the learner's time."""

    seed: int
    after: str
    age: float
    idle: float


def started(seed: int) -> SimulatedRun:
    """Return a run whose window begins with measurements drawn at random."""
    chances = random.Random(seed)
    nodes, at_once, staleness = chances.choice((4, 8)), chances.choice((1, 2, 4)), chances.choice((4, 8))
    batch = max(4, nodes * at_once // 2)
    scene = RunScene(
        fleet(chances.random() < 0.5, nodes, SUPPLY, batch, at_once, seed), at_once=at_once, batch=batch,
        staleness=staleness, step_seconds=STEP_SECONDS, gives_back=True,
    )  # fmt: skip
    run = SimulatedRun(scene, windowed=True, seed=seed)
    last, known = run.lease_window.last, chances.randrange(REMEMBERED_DRAWS + 1)
    last.windows[:] = [chances.uniform(-2.0, 2.0 * staleness) for _ in range(known)]
    last.waits[:] = [max(0.0, chances.uniform(-2.0, staleness)) for _ in range(known)]
    last.steps[:] = [1000 * STEP_SECONDS * 10 ** chances.uniform(-1, 1)] * chances.randrange(17)
    return run


def churn(run: SimulatedRun) -> None:
    """Let the nodes come and go for a while."""
    run.scene = run.scene._replace(life=5.0, away=2.0)
    run.come_and_go()
    run.run(steps=run.step + STOOD)
    run.scene = run.scene._replace(life=math.inf)


def stop_learner(run: SimulatedRun) -> None:
    """Let one step take as long as so many."""
    run.step_seconds *= STOOD
    run.run(steps=run.step + 2)
    run.step_seconds /= STOOD


def stall_node(run: SimulatedRun) -> None:
    """Let the slowest node take twenty times as long."""
    slowest_node(run).turnaround *= STALLED


def lengthen_steps(run: SimulatedRun) -> None:
    """Let steps take ten times as long."""
    run.step_seconds *= 10


def shorten_steps(run: SimulatedRun) -> None:
    """Let steps take a tenth of the time."""
    run.step_seconds /= 10


def stop_batching(run: SimulatedRun) -> None:
    """Let the slowest node make one group after the other."""
    slowest_node(run).turnaround *= run.scene.at_once


def slowest_node(run: SimulatedRun) -> SimulatedNode:
    """Return the slowest node: others make enough without it."""
    return max(run.nodes, key=lambda node: node.turnaround)


STALL: Final = "a node that stalls"
CHANGES: Final[Mapping[str, Sequence[Callable[[SimulatedRun], None]]]] = {
    "churn": (churn,),
    "a standstill": (stop_learner,),
    STALL: (stall_node,),
    "steps of ten times": (lengthen_steps, shorten_steps),
    "a node without batches": (stop_batching,),
}


def unsettled(seed: int) -> Iterator[Unsettled]:
    """Yield what the run of a seed does not settle after: its start, and a change."""
    run, name = started(seed), random.Random(-1 - seed).choice(list(CHANGES))
    if (left := _left_unsettled(run, seed, "the start")) is not None:
        yield left
    for change in CHANGES[name]:
        change(run)
        if (left := _left_unsettled(run, seed, name)) is not None:
            yield left


def _left_unsettled(run: SimulatedRun, seed: int, name: str) -> Unsettled | None:
    """Play on; return how the run stands if it has not settled."""
    run.run(steps=run.step + SETTLED)
    first = run.step
    run.run(steps=run.step + COUNTED)
    records = run.records[first:]
    age, waited = fmean(record.age for record in records), sum(record.waited for record in records)
    idle = waited / (waited + len(records) * run.step_seconds)
    others = sorted(node.turnaround for node in run.nodes)[: -1 if name == STALL else None]
    floor = math.ceil(run.scene.broadcast + others[-1] / run.step_seconds + run.scene.verdict)
    settled = age <= min(run.scene.staleness, floor + ABOVE_FLOOR) and idle <= MOST_IDLE
    return None if settled else Unsettled(seed, name, age, idle)
