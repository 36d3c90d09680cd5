"""Passes under two versions: honest nodes are refused by chance alone, and a stale one is named after some groups."""

from fractions import Fraction

import numpy as np
import pytest

from echo2.coordinator.verification.evidence import NodeEvidence, Stake
from echo2.coordinator.verification.token_evidence import DIFFERS, TOKEN, Incomparable, TokenArray
from echo2.coordinator.verification.version_pairs import (
    FIRST_PAIR_EVIDENCE,
    VERSION_BETS,
    VersionCount,
    after_pass,
    count_versions,
    is_doubted,
    version_products,
)
from echo2.engines.engine import SampleScore


def fraction(stake: Stake) -> Fraction:
    return Fraction(stake.mantissa) * Fraction(2) ** stake.exponent


def compared(*differs: bool) -> TokenArray:
    tokens = np.zeros(len(differs), TOKEN)
    tokens["flags"] = np.array(differs) * DIFFERS
    return tokens


def score(*margins: float) -> SampleScore:
    return SampleScore(logprobs=[-0.5] * len(margins), margins=list(margins))


def groups_until_named(share: float, seed: int, most: int, tokens: int = 100) -> int | None:
    """`share`: of deciding tokens, `tokens` per group, that are for the version before."""
    random, evidence = np.random.default_rng(seed), FIRST_PAIR_EVIDENCE
    for number in range(most):
        older = int(random.binomial(tokens, share))
        evidence = after_pass(evidence, VersionCount(tokens - older, older), 1)
        if evidence.conclusion() == "refusal":
            return number + 1
    return None


def test_a_token_decides_where_it_is_the_choice_under_exactly_one_version() -> None:
    samples = [(compared(False, False, True, True), score(0.0, 0.3, 0.0, 0.3)), (compared(True, False), score(0, 0))]
    assert count_versions(samples) == VersionCount(newer=1, older=2)


@pytest.mark.parametrize("margins", [(0.0,), (0.0, 0.0, 0.0), (0.0, float("nan"))])
def test_values_that_are_not_one_finite_number_per_token_decide_nothing(margins: tuple[float, ...]) -> None:
    with pytest.raises(Incomparable):
        count_versions([(compared(False, True), score(*margins))])


def test_a_product_is_never_above_the_exact_one_and_close_to_it() -> None:
    for bet, product in zip(VERSION_BETS, version_products(VersionCount(70, 30)), strict=True):
        half = Fraction(bet, 32)
        exact = (1 - half) ** 70 * (1 + half) ** 30
        assert 0 <= 1 - fraction(product) / exact < 1e-6
    assert {fraction(product) for product in version_products(VersionCount(0, 0))} == {Fraction(1)}


def test_no_stake_grows_in_the_mean_where_both_versions_are_as_likely() -> None:
    for newer, older in zip(version_products(VersionCount(1, 0)), version_products(VersionCount(0, 1)), strict=True):
        assert (fraction(newer) + fraction(older)) / 2 <= 1


@pytest.mark.slow
def test_a_node_at_the_honest_bound_is_not_refused_and_a_stale_one_is() -> None:
    assert [groups_until_named(0.5, seed, 500) for seed in range(20)] == [None] * 20
    named = [groups_until_named(0.6, seed, 60) for seed in range(20)]
    assert None not in named
    assert sorted(number for number in named if number)[10] <= 12


def test_a_node_that_was_mended_comes_back_by_honest_groups() -> None:
    evidence = FIRST_PAIR_EVIDENCE
    for _ in range(50):
        evidence = after_pass(evidence, VersionCount(20, 80), 1)
    assert evidence.conclusion() == "refusal"
    groups = 0
    while is_doubted(evidence):
        evidence, groups = after_pass(evidence, VersionCount(60, 40), 1), groups + 1
    assert groups < 100
    assert NodeEvidence.decode(evidence.encode()) == evidence
