"""The lifetime of leases: the pure rules against plain ones."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.leases.answer_lengths import LEAST_GROUPS, MOST_GROUPS, AnswerLengths
from echo2.coordinator.leases.lease_lifetime import (
    FLEET_MEMORY_MS,
    FleetTurnarounds,
    LifetimeBounds,
    first_lifetime,
    lease_duration,
    longest_lifetime,
    too_slow,
)

BOUNDS = LifetimeBounds(first=300_000, least=20_000, most=900_000)


def test_a_first_lease_for_thousands_of_tokens_lasts_longer_within_the_bounds() -> None:
    assert [first_lifetime(limit) for limit in (8, 1_500, 4_000)] == [300_000, 300_000, 800_000]
    bounds = BOUNDS._replace(first=first_lifetime(32_000))
    assert lease_duration([], None, bounds).lasts == 900_000


def test_the_longest_lease_has_room_for_a_group_at_the_limit_of_an_old_card() -> None:
    """One row at a time, 35 tokens per second: 16 rollouts of 8,192 tokens take 3,745 s, and did not fit into 900 s."""
    assert longest_lifetime(8, 16) == 900_000
    assert longest_lifetime(8_192, 16) > 16 * 8_192 / 35 * 1_000


@pytest.mark.parametrize(
    ("turnarounds", "stated", "expected", "lasts"),
    {
        "nothing said": ([], None, None, 45_000),
        "quicker than the fleet": ([], 10_000, 1_000, 45_000),
        "slower than the fleet": ([], 400_000, 100_000, 305_000),
        "answers that end at the limit": ([], 400_000, 400_000, 405_000),
        "answers of unknown length": ([], 400_000, None, 405_000),
        "never above the most": ([], 4_000_000, 800_000, 900_000),
        "measured: its word counts no more": ([10_000], 400_000, 100_000, 45_000),
    }.values(),
)
def test_a_node_that_says_how_long_a_group_takes_it_gets_the_time(
    turnarounds: list[int], stated: int | None, expected: int | None, lasts: int
) -> None:
    assert lease_duration(turnarounds, 10_000, BOUNDS, stated, expected)[:2] == (lasts, False)


def test_a_lease_that_lasts_longer_by_its_nodes_word_alone_is_late_when_one_without_ends() -> None:
    assert lease_duration([], 10_000, BOUNDS, 400_000).late_after == 45_000
    assert lease_duration([], 10_000, BOUNDS, 10_000).late_after is None
    assert lease_duration([], 10_000, BOUNDS).late_after is None


def test_the_mean_length_is_that_of_the_last_groups() -> None:
    lengths = AnswerLengths()
    for _ in range(LEAST_GROUPS - 1):
        lengths.note([10, 30])
        assert lengths.expected_time(1_000, 80) is None
    lengths.note([10, 30])
    assert (lengths.expected_time(1_000, 80), lengths.expected_time(1_000, 10), lengths.expected_time(None, 80)) == (
        250,
        1_000,
        None,
    )
    for _ in range(MOST_GROUPS):
        lengths.note([40])
    assert lengths.expected_time(1_000, 80) == 500


@pytest.mark.parametrize(
    ("turnarounds", "fleet", "lasts", "slow"),
    {
        "no group yet, no fleet": ([], None, 300_000, False),
        "no group yet": ([], 10_000, 45_000, False),
        "too few groups": ([10_000] * 2, 10_000, 45_000, False),
        "measured, no fleet": ([10_000] * 3, None, 35_000, False),
        "measured": ([10_000] * 3, 20_000, 35_000, False),
        "a bit slower than the fleet": ([20_000] * 3, 10_000, 45_000, False),
        "much slower than the fleet": ([40_000] * 3, 10_000, 125_000, True),
        "slow, after one group": ([40_000], 10_000, 125_000, True),
        "slow, no fleet": ([250_000] * 3, None, 755_000, True),
        "the p90 leaves a tenth out": ([1_000] * 18 + [30_000] * 2, 10_000, 20_000, False),
        "never below the least": ([1] * 5, 1, 20_000, False),
        "never above the most": ([800_000] * 5, 10_000, 900_000, True),
    }.values(),
)
def test_a_lease_lasts(turnarounds: list[int], fleet: int | None, lasts: int, slow: bool) -> None:
    assert lease_duration(turnarounds, fleet, BOUNDS)[:2] == (lasts, slow)


def test_a_lease_is_late_after_twice_its_nodes_usual_time_once_that_is_measured() -> None:
    assert lease_duration([10_000] * 2, 10_000, BOUNDS).late_after is None
    assert lease_duration([10_000] * 3, 10_000, BOUNDS).late_after == 20_000
    assert lease_duration([40_000] * 3, 10_000, BOUNDS).late_after == 80_000, "of a slow node too"


@given(st.lists(st.integers(1, 800_000), min_size=1, max_size=20), st.none() | st.integers(1, 900_000))
@pytest.mark.slow
def test_no_node_gets_a_lease_that_its_own_p90_does_not_fit_into(turnarounds: list[int], fleet: int | None) -> None:
    ordered = sorted(turnarounds)
    p90 = ordered[math.ceil(0.9 * len(ordered)) - 1]
    assert lease_duration(turnarounds, fleet, BOUNDS).lasts >= min(1.5 * p90, BOUNDS.most)


def test_only_a_node_that_is_always_too_late_is_too_slow() -> None:
    assert too_slow([1_000_000] * 3, last=0, now=1, bounds=BOUNDS)
    assert not too_slow([1_000_000] * 2, last=0, now=1, bounds=BOUNDS)
    assert not too_slow([1_000_000, 1_000_000, 800_000], last=0, now=1, bounds=BOUNDS)
    assert not too_slow([1_000_000] * 3, last=0, now=3_600_000, bounds=BOUNDS)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50), st.booleans()), max_size=60))
def test_the_fleets_p90_is_one_over_one_value_of_each_proven_node(notes: list[tuple[int, int, bool]]) -> None:
    fleet, plain = FleetTurnarounds(), dict[int, int]()
    for number, p90, stays in notes:
        if stays:
            fleet.note(bytes([number]), p90, 0)
            plain[number] = p90
        else:
            fleet.leave(bytes([number]))
            plain.pop(number, None)
    ordered = sorted(plain.values())
    assert fleet.p90(0) == (ordered[math.ceil(0.9 * len(ordered)) - 1] if len(ordered) >= 3 else None)
    assert fleet.p90(FLEET_MEMORY_MS + 1) is None
