"""The scorer's rate: what it did while it had enough to do."""

import pytest

from echo2.coordinator.training.verified_rate import VerifiedRate


def test_nothing_is_measured_before_the_first_full_visit() -> None:
    rate = VerifiedRate()
    rate.on_visit(8, 4.0, full=False)
    assert rate.value is None
    rate.on_visit(800, 4.0, full=True)
    assert rate.value == pytest.approx(200.0)


def test_a_short_visit_can_raise_the_rate_and_never_lowers_it() -> None:
    rate = VerifiedRate()
    rate.on_visit(800, 4.0, full=True)
    rate.on_visit(8, 4.0, full=False)
    assert rate.value == pytest.approx(200.0)
    rate.on_visit(300, 1.0, full=False)
    assert rate.value == pytest.approx(300.0)


def test_a_scorer_that_slows_down_is_seen() -> None:
    rate = VerifiedRate()
    for _ in range(50):
        rate.on_visit(800, 4.0, full=True)
    for _ in range(50):
        rate.on_visit(800, 8.0, full=True)
    assert rate.value == pytest.approx(100.0, rel=0.05)


def test_a_visit_without_a_verdict_or_without_time_tells_nothing() -> None:
    rate = VerifiedRate()
    rate.on_visit(0, 4.0, full=True)
    rate.on_visit(8, 0.0, full=True)
    assert rate.value is None


def test_the_time_of_a_rollout_is_measured_by_every_visit() -> None:
    rate = VerifiedRate()
    assert rate.each is None
    rate.on_visit(8, 4.0, full=False)
    assert rate.each == pytest.approx(0.5)
    for _ in range(50):
        rate.on_visit(8, 16.0, full=True)
    assert rate.each == pytest.approx(2.0, rel=0.01)
