"""The tables agree with turnarounds that are drawn at random, and go on where they end."""

import math
import random
import statistics

import numpy as np
import pytest

from echo2.coordinator.rollouts.turnaround_odds import END, GRID, chance, odds


def ended_within(x: float, cv: float, chances: random.Random) -> int:
    """Let a server make groups one after the other; return how many end within x mean turnarounds."""
    sigma = math.sqrt(math.log1p(cv * cv))
    time, groups = 0.0, 0
    while (time := time + chances.lognormvariate(-sigma * sigma / 2, sigma)) <= x:
        groups += 1
    return groups


@pytest.mark.parametrize("cv", [0.125, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("x", [0.6, 1.0, 1.5, 4.0, 11.0])
def test_the_expected_number_of_groups_is_that_of_random_turnarounds(cv: float, x: float) -> None:
    chances = random.Random(1)
    counts = [ended_within(x, cv, chances) for _ in range(4000)]
    groups, variance = odds(cv).groups(np.array([x]))
    assert groups[0] == pytest.approx(statistics.mean(counts), abs=0.12 + 0.02 * x)
    assert variance[0] >= 0
    single = odds(cv).within(np.array([x]))[0]
    assert single == pytest.approx(statistics.mean(count >= 1 for count in counts), abs=0.03)


def test_beyond_the_table_a_server_makes_one_group_per_turnaround() -> None:
    groups, variance = odds(0.25).groups(np.array([END, END + 10.0, 4.0 * END]))
    assert groups[1] - groups[0] == pytest.approx(10)
    assert groups[2] - groups[0] == pytest.approx(3 * END)
    assert variance[2] - variance[0] == pytest.approx(0.25 * math.sqrt(END / math.pi))


def test_no_time_brings_no_group() -> None:
    none = np.array([-3.0, 0.0])
    assert odds(0.25).within(none).tolist() == [0, 0]
    assert odds(0.25).groups(none)[0].tolist() == [0, 0]
    assert chance(0.0, 0.25) == chance(-1.0, 0.25) == 0.0


def test_a_spread_is_rounded_to_one_of_few_tables() -> None:
    assert odds(0.25) is odds(0.2501)
    assert odds(0.0).cv > 0
    assert odds(40.0).cv == 2.0


def test_chances_grow_with_the_time() -> None:
    x = np.arange(0, 3 * GRID) / GRID
    within = odds(0.5).within(x)
    assert (np.diff(within) >= 0).all()
    assert within[-1] > 0.98
