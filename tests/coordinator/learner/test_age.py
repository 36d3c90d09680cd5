"""The age of a group counts steps from its version, and freshness ends after S of them."""

import pytest

from echo2.coordinator.learner.age import age, fresh, oldest_fresh


def test_a_group_of_the_learners_own_weights_is_on_policy() -> None:
    assert [age(step, 7) for step in (6, 7, 9)] == [-1, 0, 2]


@pytest.mark.parametrize("staleness", [0, 1, 4])
@pytest.mark.parametrize("step", [0, 3, 100])
def test_the_oldest_fresh_version_is_fresh_and_the_one_before_it_is_not(step: int, staleness: int) -> None:
    oldest = oldest_fresh(step, staleness)
    assert fresh(step, oldest, staleness)
    assert not fresh(step, oldest - 1, staleness)
    assert age(step, oldest) == staleness
