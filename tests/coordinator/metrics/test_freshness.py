"""The estimate of ages by reserve agrees with the simulation of leases; the quickest nodes count first."""

from statistics import fmean

import pytest

from benchmarks.plays.run_scene import RunScene, fleet
from benchmarks.plays.simulated_run import SimulatedRun
from echo2.coordinator.metrics.freshness import FreshnessTerms, expected_age, nodes_for, reserves

TERMS = FreshnessTerms(staleness=4, period=1, latency=1.5, least=10.0)


FLEETS = [
    *((8, 1, 16, reserve, spread) for reserve in (1.5, 2.0) for spread in (False, True)),
    *(
        pytest.param(*fleet, reserve, spread, marks=pytest.mark.slow)
        for fleet in [(32, 1, 16), (16, 4, 32)]
        for reserve in (1.5, 2.0)
        for spread in (False, True)
        if (fleet, reserve, spread) not in [((32, 1, 16), 1.5, True), ((16, 4, 32), 1.5, False)]
    ),
    (32, 1, 16, 1.5, True),
    (16, 4, 32, 1.5, False),
]


@pytest.mark.parametrize(("nodes", "at_once", "batch", "reserve", "spread"), FLEETS)
@pytest.mark.slow_but("8-1-16-1.5-False")
def test_the_estimate_is_close_to_the_simulated_age(
    nodes: int, at_once: int, batch: int, reserve: float, spread: bool
) -> None:
    turnarounds = fleet(spread, nodes, reserve, batch, at_once, seed=0)
    scene = RunScene(turnarounds, at_once=at_once, batch=batch, staleness=6)
    run = SimulatedRun(scene, windowed=True, seed=1)
    run.run(steps=70)
    simulated = fmean(record.age for record in run.records[30:])  # the first steps draw from a room that was full
    per_group = len(turnarounds) / sum(1 / turnaround for turnaround in turnarounds)
    latency = scene.broadcast + scene.verdict + per_group
    estimated = expected_age(scene.staleness, scene.publish_every, latency, reserve)
    # By 0.38 at most: with speeds apart the slow nodes' groups, which the estimate has at the mean, are older.
    assert estimated == pytest.approx(simulated, abs=0.4)


def test_the_age_is_never_above_s_falls_with_the_reserve_and_grows_with_the_period() -> None:
    ages = [expected_age(4, 1, 2.5, reserve) for reserve in (1.3, 1.5, 2.0, 4.0)]
    assert ages == sorted(ages, reverse=True)  # type: ignore[type-var]
    assert ages[-1] == 3.0, "a group that takes two steps and a half is there at the third draw"
    assert expected_age(4, 1, 50.0, 2.0) == 4.0
    later = expected_age(8, 3, 1.5, 2.0)
    assert later is not None
    assert later > expected_age(8, 1, 1.5, 2.0)  # type: ignore[operator]


def test_below_a_reserve_of_a_quarter_no_age_is_told() -> None:
    assert expected_age(4, 1, 1.5, 1.1) is None


def test_the_quickest_nodes_are_counted_first_and_a_fleet_that_is_too_small_is_said() -> None:
    assert nodes_for([1.0, 5.0, 2.0], 6.0) == 2
    assert nodes_for([1.0, 5.0, 2.0], 9.0) is None
    assert nodes_for([], 1.0) is None
    assert nodes_for([3.0], 0.0) == 1


def test_there_is_a_row_for_each_reserve_and_for_the_runs_own() -> None:
    rows = reserves(TERMS, 1.25, [8.0, 8.0, 4.0])
    assert [row.reserve for row in rows] == [1.1, 1.25, 1.5, 2.0]
    assert [row.need for row in rows] == pytest.approx([11.0, 12.5, 15.0, 20.0])
    assert [row.nodes for row in rows] == [2, 2, 2, 3]
    assert rows[0].age is None
    assert len(reserves(TERMS, 1.5, [])) == 3
