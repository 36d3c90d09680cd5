"""Near-ties: honest nodes are refused by chance alone, and a node that chooses among them is named in some groups."""

from fractions import Fraction

import numpy as np
import pytest

from coordinator.verification.evidence import BETS, NodeEvidence, Stake
from coordinator.verification.near_ties import BEGINNING, RATE, NearTieCount, after_group, near_tie_products, power
from coordinator.verification.token_evidence import ONE
from runtime.units import DAY

GROUP = 16 * 1024
TAKEN = 2.5e-4
"""Share of tokens with a second choice within the margin, on SmolLM2-135M."""


def fraction(stake: Stake) -> Fraction:
    return Fraction(stake.mantissa) * Fraction(2) ** stake.exponent


def groups_until_named(rate: float, seed: int, most: int) -> int | None:
    random, evidence = np.random.default_rng(seed), BEGINNING
    for number in range(most):
        after = after_group(evidence, NearTieCount(GROUP, int(random.binomial(GROUP, rate))), 1)
        if after is None:
            return number + 1
        evidence = after
    return None


def test_a_product_is_never_above_the_exact_one_and_close_to_it() -> None:
    for bet, product in zip(BETS, near_tie_products(NearTieCount(1000, 3)), strict=True):
        p, b = Fraction(RATE, ONE), Fraction(bet, 16)
        exact = (1 + b * (1 - p)) ** 3 * (1 - b * p) ** 997
        assert 0 <= 1 - fraction(product) / exact < 1e-6
    assert power(Stake.of(3), 5) == Stake.of(243)
    assert Fraction(RATE, ONE) >= Fraction(1, 50_000) > Fraction(RATE - 1, ONE)


def test_for_an_honest_node_no_stake_grows_in_the_mean() -> None:
    for bet in BETS:
        won, lost = (near_tie_products(NearTieCount(1, ties))[BETS.index(bet)] for ties in (1, 0))
        assert fraction(won) * Fraction(1, 50_000) + fraction(lost) * Fraction(49_999, 50_000) <= 1


def test_a_node_at_the_honest_bound_is_not_refused() -> None:
    assert [groups_until_named(2e-5, seed, 100) for seed in range(10)] == [None] * 10


def test_a_node_that_takes_each_near_tie_is_named_within_a_few_groups() -> None:
    named = [groups_until_named(TAKEN, seed, 40) for seed in range(20)]
    assert None not in named
    assert sorted(number for number in named if number)[10] <= 4


def test_six_near_ties_in_each_group_no_longer_pass_for_ever() -> None:
    evidence: NodeEvidence | None = BEGINNING
    groups = 0
    while evidence is not None:
        evidence, groups = after_group(evidence, NearTieCount(GROUP, 6), 1), groups + 1
    assert groups == 2


@pytest.mark.parametrize("count", [NearTieCount(GROUP, 0), NearTieCount(1, 0), NearTieCount(0, 0)])
def test_a_group_without_a_near_tie_is_never_refused(count: NearTieCount) -> None:
    evidence = BEGINNING
    while (after := after_group(evidence, NearTieCount(100, 3), 1)) is not None:
        evidence = after
    assert after_group(evidence, count, 1) is not None


def test_a_quiet_day_begins_anew() -> None:
    evidence = after_group(BEGINNING, NearTieCount(GROUP, 1), 1)
    assert evidence is not None
    after = after_group(evidence, NearTieCount(GROUP, 1), DAY)
    assert after is not None
    assert (after.daily.groups, after.lifelong.groups) == (1, 2)
    assert NodeEvidence.decode(after.encode()) == after
