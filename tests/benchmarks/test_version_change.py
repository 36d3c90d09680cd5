"""The cost of a change of version: computed from an engine's rates, and simulated where versions come often."""

import pytest

from benchmarks.version_change import (
    FULL_SECONDS,
    MODELS,
    ROWS,
    Device,
    Progress,
    VersionedNode,
    at_once,
    by_age,
    change_cost,
    device_of,
    every_second,
    mean_context,
    rows_left,
)


def test_of_completions_of_one_length_a_row_is_met_anywhere_in_it() -> None:
    assert rows_left([4], 8) == [8, 6, 4, 2]


def test_long_completions_are_met_more_often_than_short_ones() -> None:
    assert rows_left([1, 3], 4) == [4, 2, 1]


def test_a_change_costs_nothing_where_a_row_costs_the_same_among_any_number() -> None:
    assert change_cost([8, 4, 2], {4: 10.0, 8: 10.0}, 8) == pytest.approx((0, 0))


def test_with_one_copy_empty_places_are_lost_and_with_two_whole_steps() -> None:
    """A step takes 1 s, of 4 rows or of 8: rates of 4 and 8 tokens per second."""
    cost = change_cost([8, 4], {4: 4.0, 8: 8.0}, 8)
    assert cost.one_copy == pytest.approx(4)
    assert cost.two_copies == pytest.approx(8)


def test_a_step_reads_the_weights_once_for_each_version_and_what_each_row_has() -> None:
    """Two tokens of each of three rows: of 10 tokens of context together, and then of 13."""
    assert Device(3, weights=2.0, token=0.5).seconds(2, rows=3, context=10, versions=2) == 2 * 2 * 2.0 + 0.5 * 23


def test_a_full_step_takes_the_same_time_whatever_part_of_it_the_weights_are() -> None:
    for model in MODELS.values():
        device = device_of(model)
        assert device is not None
        assert device.seconds(1, ROWS, round(ROWS * mean_context()), 1) == pytest.approx(FULL_SECONDS, rel=1e-3)


def test_the_memory_of_a_second_copy_holds_rows_where_a_row_has_a_size() -> None:
    plain, spare = (device_of(MODELS["Qwen3-4B"], spare=spare) for spare in (False, True))
    assert plain is not None
    assert spare is not None
    assert spare._replace(rows=plain.rows) == plain
    assert (spare.rows - plain.rows) * mean_context() * 147_456 == pytest.approx(8.04e9, rel=0.05)
    assert device_of(MODELS["fixed rate"], spare=True) is None


def test_a_node_that_changes_for_each_version_has_most_rows_empty_with_one_copy_and_none_with_two() -> None:
    device = device_of(None)
    assert device is not None
    one, two = (VersionedNode(device, at_once, copies, 60.0).run(5) for copies in (1, 2))
    assert one.used == pytest.approx(0.40, abs=0.02)
    assert two.used > 0.999
    assert two.rate == pytest.approx(ROWS / FULL_SECONDS / 2, rel=0.05), "each step reads the weights twice"
    assert one.age < two.age, "a second copy is free only once the groups of the version before have ended"


def test_a_node_that_waits_for_every_second_version_has_more_rows_in_use_and_older_groups() -> None:
    device = device_of(None)
    assert device is not None
    once, second = (VersionedNode(device, rule, 1, 60.0).run(5) for rule in (at_once, every_second))
    assert (once.used, second.used) == (pytest.approx(0.40, abs=0.02), pytest.approx(0.55, abs=0.02))
    assert once.old < 0.05 < second.old
    assert second.drawn < second.rate


def test_copies_and_rules_are_alike_where_no_version_comes() -> None:
    device = device_of(MODELS["Qwen3-4B"])
    assert device is not None
    results = {VersionedNode(device, rule, copies, 1e9).run(1) for rule in (at_once, by_age) for copies in (1, 2)}
    assert len(results) == 1
    assert {one.age for one in results} == {1}


@pytest.mark.parametrize(
    ("progress", "due"),
    [
        (Progress(0, 0.9, 9.0, 1.0), False),
        (Progress(1, 0.0, None, 1.0), True),
        (Progress(1, 0.0, 2.0, None), True),
        (Progress(1, 0.0, 2.0, 0.2), True),
        (Progress(1, 0.0, 2.0, 1.0), False),
        (Progress(1, 0.9, 2.0, 1.0), False),
        (Progress(1, 0.9, 2.1, 1.0), True),
        (Progress(2, 0.0, 0.9, 1.0), True),
    ],
)
def test_by_age_is_the_rule_of_the_product(progress: Progress, due: bool) -> None:
    assert by_age(progress) is due


def test_the_rule_of_the_product_draws_more_where_groups_take_long_and_is_at_once_where_they_do_not() -> None:
    device = device_of(MODELS["Qwen3-4B"])
    assert device is not None
    long_ones = [VersionedNode(device, rule, 1, 60.0).run(5) for rule in (at_once, by_age)]
    assert long_ones[1].used >= 0.55 > long_ones[0].used
    assert long_ones[1].drawn > 1.1 * long_ones[0].drawn
    short_ones = [VersionedNode(device, rule, 1, 600.0).run(5) for rule in (at_once, by_age)]
    assert short_ones[1].age < short_ones[0].age + 0.2
