"""The capacity formulas give the design's numbers and the matching advice."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.metrics import capacity
from echo2.coordinator.metrics.capacity import Measured


@pytest.mark.parametrize(
    ("staleness", "turnaround", "period"),
    [
        (3, 0.3, 2),
        (3, 1.0, 2),
        (3, 1.5, 1),
        (6, 0.9, 5),
        (6, 1.5, 4),
        (4, 1.0, 3),
        (2, 1.9, 1),
        (1, 0.5, 1),
        (3, 9.0, 1),
    ],
)
def test_the_best_period_is_the_papers_default_while_a_broadcast_takes_no_longer_than_a_step(
    staleness: int, turnaround: float, period: int
) -> None:
    assert capacity.best_period(staleness, 1.0, turnaround) == period


@pytest.mark.parametrize(
    ("staleness", "period", "turnaround", "least"),
    [
        (3, 2, 0.3, 100.0),
        (3, 2, 1.0, 100.0),
        (3, 2, 1.5, 200.0),
        (3, 2, 1.9, 1000.0),
        (6, 5, 1.5, 200.0),
        (6, 5, 1.8, 500.0),
        (6, 3, 2.5, 100.0),
        (4, 3, 1.25, 100 / 0.75),
        (2, 1, 1.4, 100 / 0.6),
        (3, 2, 2.0, None),
        (2, 2, 1.0, None),
    ],
)
def test_the_least_supply_in_both_branches(staleness: int, period: int, turnaround: float, least: float | None) -> None:
    supply = capacity.least_supply(staleness, period, 1.0, turnaround, 100.0)
    assert supply == (None if least is None else pytest.approx(least))


@given(st.integers(1, 12), st.floats(0.1, 100), st.floats(0.01, 500))
def test_the_best_period_leaves_overlap_free_wherever_any_period_does(staleness: int, step: float, back: float) -> None:
    best = capacity.best_period(staleness, step, back)
    supply = capacity.least_supply(staleness, best, step, back, 1.0)
    if capacity.least_supply(staleness, 1, step, back, 1.0) == 1.0 / step:
        assert supply == pytest.approx(1.0 / step)


@given(st.floats(0.1, 100), st.floats(0.01, 500))
def test_the_least_staleness_is_just_enough(step: float, back: float) -> None:
    enough = capacity.least_staleness(1, step, back)
    assert capacity.least_supply(enough - 1, 1, step, back, 1.0) is None
    assert capacity.least_supply(enough + 1, 1, step, back, 1.0) is not None


def test_idle_and_need() -> None:
    assert capacity.idle_share(4, 1, 1.0, 2.0, 100.0, 80.0) == pytest.approx(0.2)
    assert capacity.idle_share(4, 1, 1.0, 2.0, 100.0, 120.0) == 0.0
    late = 1 - 4 / (3.8 + 100 / 90)  # by 1 - mu/mu_min, with the room of S for unchanged steps, 0.82
    assert capacity.idle_share(4, 1, 1.0, 3.8, 100.0, 90.0) == pytest.approx(late)
    assert capacity.idle_share(4, 5, 1.0, 2.0, 100.0, 120.0) == capacity.idle_share(4, 1, 1.0, 2.0, 100.0, 0.0) == 1.0
    for supply in (60.0, 90.0, 120.0, 300.0, 600.0):  # none idle from mu_min on, and only from there
        least = capacity.least_supply(4, 2, 1.0, 2.7, 100.0)
        assert least == pytest.approx(100 / 0.3)
        assert (capacity.idle_share(4, 2, 1.0, 2.7, 100.0, supply) == 0.0) == (supply >= least)
    assert capacity.need(100.0, gamma=1.1) == pytest.approx(110.0)
    assert capacity.need(100.0, zero_variance=0.5, gamma=1.1) == pytest.approx(220.0)
    assert capacity.sequential_step(2.0, 3.0, 100.0, 50.0) == 7.0


@pytest.mark.parametrize(
    ("staleness", "period", "step", "back", "supply", "said"),
    [
        (3, 2, None, None, 0.0, "before the first steps"),
        (0, 1, 1.0, 2.0, 100.0, "a step costs 4.0 s of which 1.0 s are training"),
        (3, 2, 1.0, 0.5, 200.0, "Enough"),
        (3, 2, 1.0, 0.5, 80.0, "Short by 30 rollouts/s: the learner idles about 20%"),
        (3, 2, 1.0, 1.5, 500.0, "Publish every 1 steps instead of 2"),
        (3, 3, 1.0, 1.5, 500.0, "No supply is enough when publishing every 3 steps: publish every 1"),
        (2, 1, 1.0, 3.5, 500.0, "S = 2 is too small: a version needs 3.5 s to come back as groups"),
        (2, 1, 1.0, 3.5, 500.0, "Take S = 4, or faster nodes and uplinks"),
    ],
)
def test_advice(staleness: int, period: int, step: float | None, back: float | None, supply: float, said: str) -> None:
    measured = Measured(step_seconds=step, turnaround_seconds=back, rollouts_per_step=100.0, supply=supply)
    seen = capacity.view(staleness, period, 1.1, measured)
    assert said in seen.advice
    assert (seen.need is None) == (
        step is None or staleness == 0 or "too small" in said or "Take S" in said or period == 3
    )


@pytest.mark.parametrize(
    ("changes", "bottleneck", "said"),
    [
        ({}, None, "Enough"),
        ({"supply": 80.0}, "nodes", "Short by 30 rollouts/s"),
        ({"supply": 200.0, "verified": 60.0}, "scorer", "The scorer verifies 60 rollouts/s, 50 too few"),
        ({"supply": 200.0, "verified": 60.0, "scorers": 2}, "scorer", "2 scorers verify 60 rollouts/s, 50 too few"),
        ({"supply": 50.0, "verified": 60.0}, "nodes", "more nodes help"),
        ({"verified": 500.0}, None, "Enough"),
        ({"supply": 80.0, "idle": 0.2}, "nodes", "Short by 30 rollouts/s"),
        ({"supply": 80.0, "idle": 0.01}, None, "Enough: the learner hardly waits"),
        ({"supply": 200.0, "verified": 60.0, "idle": 0.01}, None, "Enough: the learner hardly waits"),
        ({"broadcast_seconds": 1.5, "idle": 0.01}, "uplink", "publish every 2 steps"),
        ({"broadcast_seconds": 1.5}, "uplink", "publish every 2 steps (run.publish_every, or auto)"),
        ({"broadcast_seconds": 9.0}, "uplink", "S leaves room for at most every 7 steps"),
        ({"broadcast_seconds": 9.0, "turnaround_seconds": 7.5}, "uplink", "S leaves room for every step; raise S"),
        ({"turnaround_seconds": 9.0}, "staleness", "S = 8 is too small"),
        ({"turnaround_seconds": 7.9}, "staleness", "which leaves 0.1 s to make a batch. Take S = 9"),
    ],
)
def test_the_advice_names_what_limits_the_run(changes: dict[str, float], bottleneck: str | None, said: str) -> None:
    usual = Measured(step_seconds=1.0, turnaround_seconds=1.0, rollouts_per_step=100.0, supply=200.0)
    seen = capacity.view(8, 1, 1.1, msgspec.structs.replace(usual, **changes))
    assert (seen.bottleneck, said in seen.advice) == (bottleneck, True), seen.advice
    assert seen.longest_period == (7 if seen.turnaround_seconds == 1.0 else 1)
