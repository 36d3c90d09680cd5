"""Near-ties: honest nodes are refused by chance alone, and a node that chooses among them is named in some groups."""

from fractions import Fraction

import numpy as np
import pytest

from echo2.coordinator.verification.evidence import BETS, NodeEvidence, Stake
from echo2.coordinator.verification.near_ties import (
    FIRST_TIE_EVIDENCE,
    NEAR_TIE_RATE,
    NearTieCount,
    judge_ties,
    near_tie_products,
    power,
)
from echo2.coordinator.verification.token_evidence import ONE
from echo2.runtime.units import DAY

GROUP = 16 * 1024
TAKEN = 2.5e-4
"""Share of tokens with a second choice within the margin, on SmolLM2-135M."""


def fraction(stake: Stake) -> Fraction:
    return Fraction(stake.mantissa) * Fraction(2) ** stake.exponent


def after_group(before: NodeEvidence, count: NearTieCount, now: int) -> NodeEvidence | None:
    """Return the evidence against a key without a party after a group; None if the group is refused."""
    judged = judge_ties(before, None, count, now)
    return None if judged.code else judged.key


def groups_until_named(rate: float, seed: int, most: int) -> int | None:
    random, evidence = np.random.default_rng(seed), FIRST_TIE_EVIDENCE
    for number in range(most):
        after = after_group(evidence, NearTieCount(GROUP, int(random.binomial(GROUP, rate))), 1)
        if after is None:
            return number + 1
        evidence = after
    return None


def test_a_product_is_never_above_the_exact_one_and_close_to_it() -> None:
    for bet, product in zip(BETS, near_tie_products(NearTieCount(1000, 3)), strict=True):
        p, b = Fraction(NEAR_TIE_RATE, ONE), Fraction(bet, 16)
        exact = (1 + b * (1 - p)) ** 3 * (1 - b * p) ** 997
        assert 0 <= 1 - fraction(product) / exact < 1e-6
    assert power(Stake.of(3), 5) == Stake.of(243)
    assert Fraction(NEAR_TIE_RATE, ONE) >= Fraction(1, 50_000) > Fraction(NEAR_TIE_RATE - 1, ONE)


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
    evidence: NodeEvidence | None = FIRST_TIE_EVIDENCE
    groups = 0
    while evidence is not None:
        evidence, groups = after_group(evidence, NearTieCount(GROUP, 6), 1), groups + 1
    assert groups == 2


@pytest.mark.parametrize("count", [NearTieCount(GROUP, 0), NearTieCount(1, 0), NearTieCount(0, 0)])
def test_a_group_without_a_near_tie_is_never_refused(count: NearTieCount) -> None:
    evidence = FIRST_TIE_EVIDENCE
    while (after := after_group(evidence, NearTieCount(100, 3), 1)) is not None:
        evidence = after
    assert after_group(evidence, count, 1) is not None


def spent() -> NodeEvidence:
    """Return the evidence against a party with an E far above 10^6, so that no group brings it below."""
    evidence = FIRST_TIE_EVIDENCE
    for _ in range(20):
        evidence = evidence.after(near_tie_products(NearTieCount(512, 1)), 1)
    return evidence


SPENT = spent()


def refused_neighbour(rate: float, tokens: int, seed: int, *, sparing: bool) -> tuple[int, int]:
    """Let a key with 100,000 tokens hand in 400,000 more, in groups of `tokens`, at a share `rate` of near-ties, beside
    a neighbour that keeps the party spent; return the numbers of its groups that are refused, and with a near-tie."""
    random, evidence, refused, tied = np.random.default_rng(seed), FIRST_TIE_EVIDENCE, 0, 0
    for number in range(500_000 // tokens):
        count = NearTieCount(tokens, int(random.binomial(tokens, rate)))
        later = number >= 100_000 // tokens
        judged = judge_ties(evidence, SPENT if later else None, count, 1, sparing=sparing)
        evidence, refused, tied = judged.key, refused + (judged.code != ""), tied + (later and count.near_ties > 0)
    return refused, tied


@pytest.mark.parametrize("tokens", [512, GROUP])
@pytest.mark.slow_but("16384")
def test_an_honest_key_loses_nothing_where_a_neighbour_has_spent_the_partys_near_ties(tokens: int) -> None:
    spared = [refused_neighbour(5e-6, tokens, seed, sparing=True) for seed in range(20)]
    before = [refused_neighbour(5e-6, tokens, seed, sparing=False) for seed in range(20)]
    assert sum(refused for refused, _ in spared) == 0
    assert sum(refused for refused, _ in before) == sum(tied for _, tied in before) > 20


@pytest.mark.parametrize("tokens", [512, GROUP])
@pytest.mark.slow_but("16384")
def test_a_key_at_the_honest_bound_loses_few_groups_there(tokens: int) -> None:
    both = [refused_neighbour(2e-5, tokens, seed, sparing=True) for seed in range(20)]
    assert sum(refused for refused, _ in both) <= 0.12 * sum(tied for _, tied in both)


def swarm_until_refused(tokens: int, seed: int) -> int:
    """Let each key hand in one group and take each near-tie; return the tokens before the party's first refusal."""
    random, party, total = np.random.default_rng(seed), FIRST_TIE_EVIDENCE, 0
    while True:
        count = NearTieCount(tokens, int(random.binomial(tokens, TAKEN)))
        judged = judge_ties(FIRST_TIE_EVIDENCE, party, count, 1)
        total += tokens
        if judged.code:
            return total
        assert judged.party is not None
        party = judged.party


@pytest.mark.parametrize("tokens", [512, 1024])
def test_a_swarm_of_new_keys_is_refused_as_soon_as_one_key_would_be(tokens: int) -> None:
    named = sorted(swarm_until_refused(tokens, seed) for seed in range(40))
    assert named[19] < 50_000
    assert named[37] < 90_000


def most_ties(tokens: int, clean: int, groups: int) -> float:
    """Return the near-ties per 50,000 tokens of new keys in a spent party that take in each group as many as it lets
    pass, of those that there are: the mean of 20 keys. `clean`: groups without any before."""
    random, taken = np.random.default_rng(0), 0
    for _ in range(20):
        evidence = FIRST_TIE_EVIDENCE
        for number in range(clean + groups):
            ties = 0 if number < clean else int(random.binomial(tokens, TAKEN))
            while (judged := judge_ties(evidence, SPENT, NearTieCount(tokens, ties), 1)).code:
                ties -= 1
            evidence, taken = judged.key, taken + ties
    return taken / (20 * tokens * (clean + groups)) * 50_000


@pytest.mark.parametrize(
    ("tokens", "clean", "groups"), [(512, 0, 1), (512, 32, 16), (8192, 0, 1), (8192, 2, 4), (GROUP, 0, 8)]
)
def test_in_a_spent_party_the_keys_of_a_swarm_choose_hardly_more_often_than_the_honest_bound_allows(
    tokens: int, clean: int, groups: int
) -> None:
    assert most_ties(tokens, clean, groups) <= 2.1 < TAKEN * 50_000


def test_a_quiet_day_begins_anew() -> None:
    evidence = after_group(FIRST_TIE_EVIDENCE, NearTieCount(GROUP, 1), 1)
    assert evidence is not None
    after = after_group(evidence, NearTieCount(GROUP, 1), DAY)
    assert (after.daily.groups, after.lifelong.groups) == (1, 2)
    assert NodeEvidence.decode(after.encode()) == after
