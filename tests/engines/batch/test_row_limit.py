"""The number of rows is found by trying: devices differ, and so does the memory at hand."""

from collections.abc import Callable

import pytest

from echo2.engines.batch.row_limit import (
    FIRST_ROWS,
    MEASURED_STEPS,
    OWNERS_MOST,
    RETRY_STEPS,
    Memory,
    RowLimit,
    owners_most,
)


def measuring(limit: RowLimit, seconds: Callable[[int], float], steps: int = 20 * MEASURED_STEPS) -> None:
    """Measure so many full steps, on a device whose step of n rows takes `seconds(n)`."""
    for _ in range(steps):
        limit.on_step_duration(limit.rows, seconds(limit.rows))


def bound_by_weights(rows: int) -> float:
    """A step that reads 10 s of weights, and computes 0.1 s per row: as a CPU's."""
    return max(10.0, 0.1 * rows) + 0.01 * rows


def test_the_rows_double_while_a_doubling_gains() -> None:
    limit = RowLimit()
    assert limit.rows == FIRST_ROWS
    measuring(limit, bound_by_weights)
    assert limit.rows == 128  # 64 rows: 6.0 a second; 128: 9.1; 256: 9.1


def test_a_device_that_gains_nothing_keeps_the_first_number() -> None:
    limit = RowLimit()
    measuring(limit, lambda rows: 0.1 * rows)
    assert limit.rows == FIRST_ROWS


def test_steps_that_were_not_full_say_nothing() -> None:
    limit = RowLimit()
    for _ in range(1000):
        limit.on_step_duration(FIRST_ROWS - 1, 1.0)
    assert limit.rows == FIRST_ROWS


def test_one_slow_step_does_not_end_the_search() -> None:
    limit = RowLimit()
    for step in range(20 * MEASURED_STEPS):
        limit.on_step_duration(limit.rows, 1000.0 if step % 5 == 4 else bound_by_weights(limit.rows))
    assert limit.rows == 128


def test_a_doubling_that_failed_is_tried_again_later() -> None:
    limit = RowLimit()
    measuring(limit, lambda rows: 1.0 * rows)  # something else took the device's time
    assert limit.rows == FIRST_ROWS
    measuring(limit, bound_by_weights, steps=RETRY_STEPS + 20 * MEASURED_STEPS)
    assert limit.rows == 128


@pytest.mark.parametrize("most", [1, 5, FIRST_ROWS, 50])
def test_the_owner_bounds_the_rows(most: int) -> None:
    limit = RowLimit(most)
    measuring(limit, bound_by_weights)
    assert limit.rows == most


def test_the_owners_bound_is_read_from_the_environment_of_the_engine() -> None:
    assert owners_most({OWNERS_MOST: "24"}) == 24
    assert owners_most({"OMP_NUM_THREADS": "1"}) is None


def test_after_an_out_of_memory_the_rows_halve_and_stay_below_what_did_not_fit() -> None:
    limit = RowLimit()
    measuring(limit, bound_by_weights)
    limit.out_of_memory(limit.rows)
    assert limit.rows == 64
    measuring(limit, bound_by_weights, steps=RETRY_STEPS - 1)
    assert limit.rows == 64
    measuring(limit, bound_by_weights)  # memory may be free again
    assert limit.rows == 128


def test_out_of_memory_again_and_again_ends_at_one_row() -> None:
    limit = RowLimit()
    for expected in (8, 4, 2, 1, 1):
        limit.out_of_memory(limit.rows)
        assert limit.rows == expected


def test_where_memory_was_gone_for_a_moment_few_steps_are_made_with_one_row() -> None:
    limit = RowLimit()
    measuring(limit, bound_by_weights)
    while limit.rows > 1:
        limit.out_of_memory(limit.rows)
    measuring(limit, bound_by_weights, steps=RETRY_STEPS // 32 + 20 * MEASURED_STEPS)
    assert limit.rows == 128


def test_where_memory_stays_gone_trials_become_rare() -> None:
    limit = RowLimit()
    trials = 0
    for _ in range(20 * RETRY_STEPS):
        limit.on_step_duration(limit.rows, bound_by_weights(limit.rows))
        if limit.rows > 2:
            trials += 1
            limit.out_of_memory(limit.rows)
    assert limit.rows <= 2
    assert trials < 16


def test_memory_bounds_the_rows_by_the_longest_sequence() -> None:
    memory = Memory(at_hand=1_000_000, token=10, row=100)
    assert memory.fitting(90) == 600
    assert memory.fitting(990) == 60
    assert memory.fitting(10**9) == 1


def test_rollouts_that_are_longer_than_the_steps_between_two_trials_end() -> None:
    """Each trial that does not fit costs all rows their tokens: with equal distances 10,000 tokens would never end."""
    limit = RowLimit()
    longest = tokens = 0
    for _ in range(20 * RETRY_STEPS):
        tokens += 1
        limit.on_step_duration(limit.rows, bound_by_weights(limit.rows))
        if limit.rows > FIRST_ROWS:
            limit.out_of_memory(limit.rows)
            longest, tokens = max(longest, tokens), 0
    assert max(longest, tokens) > 10_000
