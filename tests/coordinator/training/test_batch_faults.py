"""Batches are charged with errors and deaths of the learner, and set aside after a second or third."""

import random

from echo2.coordinator.training.batch_faults import BatchFaults

A, B = [b"a1", b"a2"], [b"b1", b"b2"]


def test_the_second_error_sets_a_batch_aside_and_not_the_first() -> None:
    faults = BatchFaults()
    assert [faults.failed(A), faults.failed(A)] == [False, True]
    assert [faults.failed(A), faults.failed(A)] == [False, True], "set aside, it begins anew"


def test_a_batch_is_the_same_in_any_order_of_its_groups() -> None:
    faults = BatchFaults()
    assert [faults.failed(A), faults.failed(A[::-1])] == [False, True]


def test_the_third_death_in_a_row_sets_a_batch_aside() -> None:
    faults = BatchFaults()
    assert [faults.died(A) for _ in range(3)] == [False, False, True]


def test_a_step_between_clears_the_charges() -> None:
    faults = BatchFaults()
    for step in range(1, 20):
        assert not faults.died(A)
        assert not faults.died(A)
        assert not faults.failed(A)
        assert faults.stepped(step)


def test_another_batch_between_clears_the_charges() -> None:
    faults = BatchFaults()
    for _ in range(10):
        assert not faults.died(A)
        assert not faults.died(B)
        assert not faults.failed(A)
        assert not faults.failed(B)


def test_a_step_repeated_after_a_fall_back_clears_nothing() -> None:
    """Versions are published every second step: before each attempt at the bad batch, the learner repeats one step."""
    faults = BatchFaults()
    assert faults.stepped(7)
    assert not faults.failed(A)
    assert not faults.stepped(7)
    assert faults.failed(A)


def test_a_later_era_counts_its_steps_anew() -> None:
    faults = BatchFaults()
    faults.opened(1, 0)
    assert faults.stepped(9)
    faults.opened(2, 7)
    assert faults.stepped(8)
    faults.opened(2, 7)
    assert not faults.stepped(8)


def test_a_learner_that_cannot_be_opened_withdraws_the_charge() -> None:
    faults = BatchFaults()
    for _ in range(10):
        assert not faults.failed(A)
        faults.excuse()
    assert [faults.died(A), faults.died(A)] == [False, False]
    faults.excuse()
    assert [faults.died(A), faults.died(A)] == [False, True]


def test_twenty_random_deaths_set_no_batch_aside() -> None:
    """One death per three steps seldom hits the same batch three times in a row: checked for a thousand seeds."""
    for seed in range(1000):
        chance, faults, killed, step = random.Random(seed), BatchFaults(), 0, 0
        while killed < 20:
            step += 1
            batch = [b"%d" % step]
            deaths = min(2, sum(chance.random() < 1 / 3 for _ in range(2)))
            killed += deaths
            assert not any([faults.died(batch) for _ in range(deaths)])
            faults.stepped(step)
