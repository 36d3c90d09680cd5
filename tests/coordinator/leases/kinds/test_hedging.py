"""Overdue leases are covered within a share of all leases, by subnets in an order that nobody can foresee."""

import math
import random

import pytest

from echo2.coordinator.leases.kinds.hedging import BURST, ENOUGH, HedgeShare, may_have, overdue_after


def test_a_node_without_a_distribution_has_no_overdue_lease() -> None:
    assert overdue_after([60_000] * (ENOUGH - 1)) is None
    assert overdue_after([60_000] * ENOUGH) is not None


def test_a_lease_is_overdue_after_the_longest_turnaround_and_not_before_most_of_the_distribution() -> None:
    assert overdue_after([1_000] * 20) == pytest.approx(1_000 * 1.92, rel=0.01)
    assert overdue_after([*[1_000] * 19, 9_000]) == 9_000
    assert overdue_after([0] * ENOUGH) == 3


@pytest.mark.parametrize("cv", [0.25, 0.5, 1.0])
@pytest.mark.slow_but("0.25")
def test_an_honest_node_is_overdue_in_about_one_lease_of_a_hundred(cv: float) -> None:
    chance = random.Random(0)
    sigma = math.sqrt(math.log1p(cv * cv))
    late = 0
    for _ in range(4_000):
        *last, following = (int(60_000 * chance.lognormvariate(0.0, sigma)) for _ in range(21))
        overdue = overdue_after(last)
        assert overdue is not None
        late += following > overdue
    assert late / 4_000 < 0.015


def test_hedges_are_at_most_their_share_of_all_leases() -> None:
    share, given = HedgeShare(0.05), []
    for _ in range(2_000):
        given.append(share.may())
        share.note(hedge=given[-1])
        assert sum(given) <= 0.05 * len(given)
    assert sum(given) == 100
    assert not HedgeShare(0.0).may()


def test_after_a_calm_time_only_a_few_hedges_may_follow_each_other() -> None:
    share = HedgeShare(0.05)
    for _ in range(10_000):
        share.note(hedge=False)
    burst = 0
    while share.may():
        share.note(hedge=True)
        burst += 1
    assert burst == BURST


def test_each_subnet_has_a_moment_of_its_own_that_only_the_secret_tells() -> None:
    subnets = [f"10.{number}.0.0/24" for number in range(1_000)]
    at = [may_have(b"lease", 0, 1_000, one, b"secret") for one in subnets]
    assert 1_000 <= min(at) < 1_010
    assert 1_490 < max(at) < 1_500
    assert at == [may_have(b"lease", 0, 1_000, one, b"secret") for one in subnets]
    assert at != [may_have(b"lease", 0, 1_000, one, b"other") for one in subnets]
    assert at != [may_have(b"other", 0, 1_000, one, b"secret") for one in subnets]
