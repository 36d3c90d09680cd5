"""Batches are charged with errors and deaths of the learner, and set aside after a second or third."""

import random

from echo2.coordinator.training.batch_faults import BatchFaults

A, B = [b"a1", b"a2"], [b"b1", b"b2"]


def test_the_second_error_sets_a_batch_aside_and_not_the_first() -> None:
    faults = BatchFaults()
    assert [faults.on_failure(A), faults.on_failure(A)] == [False, True]
    assert [faults.on_failure(A), faults.on_failure(A)] == [False, True], "set aside, it begins anew"


def test_a_batch_is_the_same_in_any_order_of_its_groups() -> None:
    faults = BatchFaults()
    assert [faults.on_failure(A), faults.on_failure(A[::-1])] == [False, True]


def test_the_third_death_in_a_row_sets_a_batch_aside() -> None:
    faults = BatchFaults()
    assert [faults.on_death(A) for _ in range(3)] == [False, False, True]


def test_a_step_between_clears_the_charges() -> None:
    faults = BatchFaults()
    for step in range(1, 20):
        assert not faults.on_death(A)
        assert not faults.on_death(A)
        assert not faults.on_failure(A)
        assert faults.on_step(step)


def test_another_batch_between_clears_the_charges() -> None:
    faults = BatchFaults()
    for _ in range(10):
        assert not faults.on_death(A)
        assert not faults.on_death(B)
        assert not faults.on_failure(A)
        assert not faults.on_failure(B)


def test_a_step_repeated_after_a_fall_back_clears_nothing() -> None:
    """Versions are published every second step: before each attempt at the bad batch, the learner repeats one step."""
    faults = BatchFaults()
    assert faults.on_step(7)
    assert not faults.on_failure(A)
    assert not faults.on_step(7)
    assert faults.on_failure(A)


def test_a_later_era_counts_its_steps_anew() -> None:
    faults = BatchFaults()
    faults.on_opening(1, 0)
    assert faults.on_step(9)
    faults.on_opening(2, 7)
    assert faults.on_step(8)
    faults.on_opening(2, 7)
    assert not faults.on_step(8)


def test_a_learner_that_cannot_be_opened_withdraws_the_charge() -> None:
    faults = BatchFaults()
    for _ in range(10):
        assert not faults.on_failure(A)
        faults.excuse()
    assert [faults.on_death(A), faults.on_death(A)] == [False, False]
    faults.excuse()
    assert [faults.on_death(A), faults.on_death(A)] == [False, True]


def test_twenty_random_deaths_set_no_batch_aside() -> None:
    """One death per three steps seldom hits the same batch three times in a row: checked for a thousand seeds."""
    for seed in range(1000):
        chance, faults, killed, step = random.Random(seed), BatchFaults(), 0, 0
        while killed < 20:
            step += 1
            batch = [b"%d" % step]
            deaths = min(2, sum(chance.random() < 1 / 3 for _ in range(2)))
            killed += deaths
            assert not any([faults.on_death(batch) for _ in range(deaths)])
            faults.on_step(step)
