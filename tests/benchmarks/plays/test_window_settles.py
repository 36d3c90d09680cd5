"""From any start the window of leases comes to what the fleet needs: there is no state in which it stays wrong.

The window is told by the events of a simulated run alone. A run begins with made-up measurements, then its nodes come
and go, a node stalls, and the learner's steps become ten times longer or shorter."""

import math
import random
from statistics import fmean

import pytest

from benchmarks.plays.run_scene import RunScene, fleet
from benchmarks.plays.simulated_run import SimulatedRun
from echo2.coordinator.leases.lease_window import REMEMBERED_DRAWS

SETTLED = 2 * REMEMBERED_DRAWS + 12
"""Steps after a change until the window has forgotten what was before, and what was leased then is drawn: half of the
steps of which T is the median, the draws that were measured by them, and S + 1 batches that wait."""
COUNTED = 16


def started(seed: int, supply: float) -> SimulatedRun:
    """Return a run whose window begins with measurements drawn at random."""
    chances = random.Random(seed)
    nodes, at_once, staleness = chances.choice((4, 8)), chances.choice((1, 2)), chances.choice((4, 8))
    batch = max(4, nodes * at_once * chances.choice((1, 2)) // 2)
    scene = RunScene(
        fleet(chances.random() < 0.5, nodes, supply, batch, at_once, seed), at_once=at_once, batch=batch,
        staleness=staleness, life=chances.choice((math.inf, 60.0)), away=1.0,
    )  # fmt: skip
    run = SimulatedRun(scene, windowed=True, seed=seed)
    last = run.lease_window.last
    last.windows[:] = [chances.uniform(-2.0, 2.0 * staleness) for _ in range(chances.randrange(REMEMBERED_DRAWS + 1))]
    last.steps[:] = [1000 * scene.step_seconds * 10 ** chances.uniform(-1, 1)] * chances.randrange(17)
    return run


def counted(run: SimulatedRun) -> tuple[float, float]:
    """Return the mean age and the idle share of the next steps, once the window has settled."""
    run.run(steps=run.step + SETTLED)
    first = run.step
    run.run(steps=run.step + COUNTED)
    records = run.records[first:]
    waited = sum(record.waited for record in records)
    return fmean(record.age for record in records), waited / (records[-1].at - records[0].at + waited)


def is_settled(run: SimulatedRun) -> bool:
    """Tell whether groups are no older than a run of its latency makes them, and the learner hardly waits."""
    age, idle = counted(run)
    turnaround = max(node.turnaround for node in run.nodes) / run._step_seconds
    floor = math.ceil(run.scene.broadcast + turnaround + run.scene.verdict)
    return age <= min(run.scene.staleness, floor + 1.5) and idle <= 0.2


@pytest.mark.parametrize("starts", [2, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_window_settles_from_any_start_and_after_any_change(starts: int) -> None:
    unsettled = list[tuple[int, str]]()
    for seed in range(starts):
        longer = started(seed, 2.0)
        if not is_settled(longer):
            unsettled.append((seed, "start"))
        longer.nodes[0].turnaround *= 20  # stops batching, or stalls
        longer._step_seconds *= 10
        if not is_settled(longer):
            unsettled.append((seed, "longer steps"))
        shorter = started(seed, 20.0)
        counted(shorter)
        shorter._step_seconds /= 10
        if not is_settled(shorter):
            unsettled.append((seed, "shorter steps"))
    assert unsettled == []
