"""Leased time is a union, throughput decays with it, and its lower bound grows with the number of groups."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.market.leased_time import (
    KEPT_INTERVALS,
    Interval,
    extend_intervals,
    lease_interval,
    length,
    union,
)
from echo2.coordinator.market.throughput import (
    HALF_LIFE,
    HOUR,
    READY_GROUPS,
    RESOLUTION,
    SAMPLES,
    STALE_MS,
    LeasedGroup,
    Throughput,
    group_rate,
    measure_node,
    relative_error,
)
from echo2.ledger.half_life import decay, decay_table

MINUTE = 60_000


def group(sent: int, received: int, weight: int = 1000) -> LeasedGroup:
    return LeasedGroup(sent, received, sent + HOUR, weight, True)


def groups(count: int, each: int = MINUTE, weight: int = 1000, begin: int = 0) -> list[LeasedGroup]:
    """Return groups one after the other."""
    return [group(begin + number * each, begin + (number + 1) * each, weight) for number in range(count)]


def test_rows_of_the_table_are_the_greatest_integers_below_the_powers() -> None:
    assert decay_table(HALF_LIFE)[0] == 1 << 32
    assert decay_table(HALF_LIFE)[30] == 3037000499
    for minutes, row in enumerate(decay_table(HALF_LIFE)):
        assert row**60 <= 1 << (32 * 60 - minutes) < (row + 1) ** 60


def test_an_hour_halves_and_parts_of_an_hour_come_near_to_it() -> None:
    assert decay(1 << 40, 60, HALF_LIFE) == 1 << 39
    assert decay(1 << 40, 600, HALF_LIFE) == 1 << 30
    assert decay(10**12, 5 * 60 + 30, HALF_LIFE) == 10**12 * decay_table(HALF_LIFE)[30] >> 32 >> 5


def test_a_lease_ends_with_its_group_or_at_its_expiry() -> None:
    assert lease_interval(10, 20, 30) == Interval(10, 20)
    assert lease_interval(10, 40, 30) == Interval(10, 30)
    assert lease_interval(10, None, 30) == Interval(10, 30)
    assert lease_interval(10, 5, 30) == Interval(10, 10), "a clock that went back leaves no time"


def test_parallel_leases_do_not_count_twice_also_across_epochs() -> None:
    covered, grown = extend_intervals([], [Interval(0, 10), Interval(5, 15), Interval(20, 30)])
    assert (covered, grown) == ([Interval(0, 15), Interval(20, 30)], 25)
    assert extend_intervals(covered, [Interval(12, 22), Interval(29, 31)]) == ([Interval(0, 31)], 6)
    assert extend_intervals(covered, [Interval(3, 9)])[1] == 0
    assert extend_intervals(covered, [Interval(-5, 2)]) == ([Interval(-5, 15), Interval(20, 30)], 5)


@given(st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=5), max_size=8))
def test_the_union_grows_by_each_instant_once(epochs: list[list[tuple[int, int]]]) -> None:
    covered: list[Interval] = []
    total, instants = 0, set[int]()
    for epoch in epochs:
        new = [Interval(begin, begin + size) for begin, size in epoch]
        covered, grown = extend_intervals(covered, new)
        total += grown
        instants.update(*(range(begin, end) for begin, end in new))
        assert covered == union(covered)
        assert length(covered) == total == len(instants)


def test_the_remembered_intervals_are_bounded_and_older_time_counts_no_more() -> None:
    covered, _ = extend_intervals([], [Interval(10 * number, 10 * number + 5) for number in range(3 * KEPT_INTERVALS)])
    assert len(covered) == KEPT_INTERVALS
    assert extend_intervals(covered, [Interval(0, 5)]) == (covered, 0)


def test_throughput_is_work_per_leased_hour() -> None:
    after, grown = measure_node(Throughput(), groups(30, weight=2000))
    assert grown == 30 * MINUTE
    assert after.mean == 120_000
    assert after.lower == 120_000, "all groups were equally quick"
    assert after.ready


def test_asking_for_little_work_does_not_look_fast() -> None:
    twice = [group(0, MINUTE), group(0, MINUTE)]
    slow = [group(0, MINUTE), group(30 * MINUTE, 31 * MINUTE)]
    assert measure_node(Throughput(), twice).throughput.mean == 2 * measure_node(Throughput(), slow).throughput.mean


def test_expired_and_refused_leases_cost_time_and_bring_no_work() -> None:
    failed = [LeasedGroup(HOUR, None, HOUR + 30 * MINUTE, 0, False)]
    after = measure_node(measure_node(Throughput(), groups(30)).throughput, failed).throughput
    assert after.groups == 30
    assert after.mean < 35_000


def test_a_lease_that_was_given_back_begins_the_row_of_probation_not_anew() -> None:
    nine = groups(9)
    returned = LeasedGroup(9 * HOUR, None, 9 * HOUR + MINUTE, 0, False, True)
    last = group(10 * HOUR, 10 * HOUR + MINUTE)
    assert measure_node(Throughput(), [*nine, returned, last]).throughput.proven
    expired = LeasedGroup(9 * HOUR, None, 9 * HOUR + MINUTE, 0, False)
    assert not measure_node(Throughput(), [*nine, expired, last]).throughput.proven


def test_old_work_and_old_time_halve_together_per_hour_of_leased_time() -> None:
    before = measure_node(Throughput(), groups(60, weight=1000)).throughput
    after = measure_node(before, groups(60, weight=3000, begin=5 * HOUR)).throughput
    assert after.work == decay(60_000, 60, HALF_LIFE) + 180_000 == 210_000
    assert after.leased == 30 * MINUTE + HOUR
    assert after.mean == 140_000


def test_seconds_that_did_not_fill_a_minute_count_at_the_next_decay() -> None:
    first = measure_node(Throughput(), [group(0, 90_000)]).throughput
    assert first.rest == 30_000
    assert measure_node(first, [group(HOUR, HOUR + 30_000)]).throughput.rest == 0


def test_the_lower_bound_is_exact_and_at_least_half() -> None:
    # rates 1 and 3: mean 2, deviation 1, so cv / sqrt(2) = 1 / sqrt(8) = 0.353553390593..., rounded up
    assert relative_error([1, 3]) == Fraction(353_553_391, RESOLUTION)
    assert relative_error([5, 5, 5]) == 0
    assert relative_error([7]) == relative_error([]) == 1
    after = measure_node(Throughput(), [group(0, MINUTE, 1000), group(MINUTE, 2 * MINUTE, 3000)]).throughput
    assert after.rates == (60_000, 180_000)
    assert after.lower == int(120_000 * max(1 - Fraction(41, 25) * Fraction(353_553_391, RESOLUTION), Fraction(1, 2)))
    assert measure_node(Throughput(), [group(0, MINUTE, 1)]).throughput.lower == 30, "one group says little"


def test_the_bound_comes_nearer_with_the_number_of_groups_and_memory_is_bounded() -> None:
    def bound(pairs: int) -> Fraction:
        mixed = [
            group(number * MINUTE, (number + 1) * MINUTE, 1000 if number % 2 else 3000) for number in range(2 * pairs)
        ]
        after = measure_node(Throughput(), mixed).throughput
        assert len(after.rates) <= SAMPLES
        return after.lower / after.mean

    assert bound(2) < bound(8) < bound(20) < bound(32) < 1


def test_a_group_that_came_at_once_has_a_finite_rate() -> None:
    assert group_rate(group(5, 5, 2)) == 2 * HOUR


def test_newcomers_count_with_their_benchmark_or_less() -> None:
    assert Throughput().rate(5000) == 5000
    assert Throughput().rate(0) == 0
    new = measure_node(Throughput(), groups(READY_GROUPS - 1)).throughput
    assert not new.ready
    assert new.rate(5000) == 5000
    assert new.rate(10**9) == 60_000, "the throughput so far"
    assert new.rate(0) == 60_000, "canaries count as benchmark"
    assert measure_node(new, groups(1, begin=HOUR)).throughput.ready


def test_a_measurement_is_forgotten_a_day_after_its_last_lease() -> None:
    after = measure_node(Throughput(), groups(3)).throughput
    assert not after.stale(3 * MINUTE + STALE_MS - 1)
    assert after.stale(3 * MINUTE + STALE_MS)
    assert not Throughput().stale(10**15)


def test_probation_ends_with_ten_accepted_groups_in_a_row() -> None:
    refused = LeasedGroup(HOUR, HOUR + 1, 2 * HOUR, 0, False)
    nine = measure_node(Throughput(), groups(9)).throughput
    assert not nine.proven
    assert not measure_node(nine, [refused, *groups(9, begin=HOUR)]).throughput.proven
    ten = measure_node(nine, groups(1, begin=HOUR)).throughput
    assert ten.proven
    assert measure_node(ten, [refused]).throughput.proven


@pytest.mark.parametrize("minutes", [0, 1, 59, 60, 61, 6000])
def test_decay_never_grows(minutes: int) -> None:
    assert 0 <= decay(12345, minutes, HALF_LIFE) <= 12345
