"""Bets against a node: the bound on an honest one, the power against another, and the arithmetic to the bit."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from echo2.coordinator.verification.evidence import (
    BET_UNIT,
    BETS,
    DOUBT_EVIDENCE,
    LEAST_P,
    LIFELONG_REFUSAL,
    MOST_POWER,
    NO_STAKE,
    REFUSAL_EVIDENCE,
    STAKES,
    EProcess,
    NodeEvidence,
    Stake,
    factors,
    mean,
    products,
    stake_group,
    total,
)
from echo2.coordinator.verification.token_evidence import BINS, DIFFERS, ONE, START, STATISTICS, TOKEN, TokenArray
from echo2.runtime.units import DAY

Generator = np.random.Generator
TABLES = {name: [ONE * 51 // 100 if name in ("above", "below") else ONE // 50] * BINS for name in STATISTICS}
"""2 % of an honest node's tokens differ, whatever the gap."""
RIGHT = np.array([(BINS - 1, START, 0, 0)], TOKEN)
OUTLIER = np.array([(BINS - 1, DIFFERS | START, 65535, -32768)], TOKEN)


def stream(generator: Generator, number: int, rate: float, size: float = 0.02) -> TokenArray:
    """Return tokens of which a share of `rate` differs, by margins of mean `size` nats."""
    tokens = np.zeros(number, TOKEN)
    differs = generator.random(number) < rate
    tokens["gap"] = generator.integers(0, BINS, number)
    tokens["flags"] = np.where(differs, DIFFERS, 0)
    tokens["margin"] = np.where(differs, np.minimum(65535, generator.exponential(size, number) * 2**14), 0)
    tokens["drift"] = np.clip(generator.normal(0, size / 4, number) * 2**16, -32768, 32767)
    return tokens


def as_fraction(stake: Stake) -> Fraction:
    return Fraction(stake.mantissa) * Fraction(2) ** stake.exponent


def exact(tokens: TokenArray) -> list[Fraction]:
    """Calculate `products` without any rounding but that of p and of the bets."""
    result = []
    for name, statistic in STATISTICS.items():
        values, counts = statistic(tokens)
        for bet in BETS:
            product = Fraction(1)
            for value, gap in zip(values[counts].tolist(), tokens["gap"][counts].tolist(), strict=True):
                p = Fraction(max(LEAST_P, TABLES[name][gap]), ONE)
                lowered = min(bet, math.floor(BET_UNIT / (2 * p)))
                product *= 1 + Fraction(lowered, BET_UNIT) * (Fraction(value, ONE) - p)
            result.append(product)
    return result


def test_a_second_calculation_in_fractions_is_never_below_ours_and_close_to_it() -> None:
    generator = np.random.default_rng(5)
    process, truth = EProcess(), [Fraction(0)] * STAKES
    for number in range(1, 5):
        group = stream(generator, 60, 0.05)
        process = process.after(products(group, TABLES))
        share = Fraction(1, number * (number + 1))
        truth = [(stake + share) * product for stake, product in zip(truth, exact(group), strict=True)]
    for ours, theirs in zip(process.stakes, truth, strict=True):
        assert theirs * Fraction(999_999, 1_000_000) < as_fraction(ours) <= theirs
    assert as_fraction(process.value()) <= sum(truth) / STAKES


@pytest.mark.slow
def test_a_bet_in_one_step_gives_the_bits_of_its_three_steps() -> None:
    generator = np.random.default_rng(3)

    def drawn(least: int, most: int) -> Stake:
        return Stake.of(int(generator.integers(1, 1 << 63)), int(generator.integers(least, most)))

    for _ in range(20_000):
        share, product = drawn(-200, -60), drawn(-140, -50)
        far = drawn(-1200, -20)
        near = far._replace(exponent=share.exponent + int(generator.integers(-66, 67)))
        for stake in (NO_STAKE, far, near):
            assert stake_group([stake], share, [product]) == (stake.plus(share).times(product).within_bounds(),)


def test_sums_and_means_are_rounded_down() -> None:
    stakes = [Stake.of(3, -200), Stake.of((1 << 64) - 1), Stake.of(7, -30), NO_STAKE]
    truth = sum(map(as_fraction, stakes), Fraction(0))
    assert truth * (1 - Fraction(1, 1 << 62)) < as_fraction(total(stakes)) <= truth
    assert truth / 4 * (1 - Fraction(1, 1 << 61)) < as_fraction(mean(stakes)) <= truth / 4
    assert total([]) == total([NO_STAKE]) == NO_STAKE


@pytest.mark.parametrize("p", [0, 1, LEAST_P, ONE // 50, ONE // 2, ONE])
def test_every_factor_is_between_one_half_and_sixteen_and_fair_at_the_bound(p: int) -> None:
    bound = np.full(2, p, np.int64)
    for bet in BETS:
        lost, won = factors(np.array([0, ONE]), bound, bet).tolist()
        assert ONE // 2 <= lost <= ONE <= won <= 16 * ONE
        fair = max(LEAST_P, p)
        assert fair * won + (ONE - fair) * lost <= ONE * ONE


def test_one_outlier_multiplies_the_evidence_by_sixteen_at_most() -> None:
    generator = np.random.default_rng(2)
    before = EProcess().after(products(stream(generator, 400, 0.02), TABLES))
    least = dict.fromkeys(STATISTICS, [LEAST_P] * BINS)
    for tables in (TABLES, least):
        whole = products(OUTLIER, tables)
        assert all(as_fraction(product) <= 16 for product in whole)
        after = mean([stake.times(product) for stake, product in zip(before.stakes, whole, strict=True)])
        assert as_fraction(before.value()) < as_fraction(after) <= 16 * as_fraction(before.value())


def test_the_same_groups_in_the_same_order_give_the_same_bits() -> None:
    def state() -> bytes:
        generator, evidence = np.random.default_rng(3), NodeEvidence()
        for number in range(6):
            evidence = evidence.after(products(stream(generator, 50, 0.04), TABLES), number * DAY // 2)
        return evidence.encode()

    assert state() == state()
    assert NodeEvidence.decode(state()).encode() == state()
    assert len(state()) == len(NodeEvidence().encode())


Honest = Callable[[Generator, int, TokenArray], TokenArray]


def alike(generator: Generator, number: int, before: TokenArray) -> TokenArray:
    return stream(generator, number, 0.02)


def in_bursts(generator: Generator, number: int, before: TokenArray) -> TokenArray:
    """Return tokens that differ at the bound after a group with a differing one, and seldom after another."""
    return stream(generator, number, 0.02 if before["flags"].any() else 0.004)


def all_alike_or_none(generator: Generator, number: int, before: TokenArray) -> TokenArray:
    """Return tokens whose margins and drifts follow from the one before: no token is independent of another."""
    tokens = stream(generator, number, 0.02)
    tokens["drift"] = np.where(tokens["flags"] > 0, int(before["drift"][-1]) // 2, tokens["drift"])
    return tokens


@pytest.mark.parametrize("honest", [alike, in_bursts, all_alike_or_none])
@pytest.mark.slow
def test_honest_nodes_reach_n_with_a_chance_of_one_in_n_at_most(honest: Honest) -> None:
    """Ville's bound where a simulation can see it: 100 nodes of 12 groups of 60 tokens."""
    generator = np.random.default_rng(11)
    highest = []
    for _ in range(100):
        process, group, peak = EProcess(), OUTLIER, 0.0
        for _ in range(12):
            group = honest(generator, 60, group)
            process = process.after(products(group, TABLES))
            peak = max(peak, float(as_fraction(process.value())))
        highest.append(peak)
    seen = np.array(highest)
    assert (seen >= 10).mean() <= 1 / 10
    assert (seen >= 50).mean() <= 1 / 50
    assert seen.max() < DOUBT_EVIDENCE


def groups_until_refusal(rate: float, size: float, tokens: int, good_first: int = 0) -> int:
    generator, evidence = np.random.default_rng(7), NodeEvidence()
    for _ in range(good_first):
        evidence = evidence.after(products(stream(generator, tokens, 0.01, 0.005), TABLES), 1)
    for number in range(1, 400):
        evidence = evidence.after(products(stream(generator, tokens, rate, size), TABLES), 1)
        if evidence.conclusion() == "refusal":
            return number
    return 400


@pytest.mark.parametrize(
    ("named", "rate", "size", "most"),
    [("int4", 0.41, 0.4, 60), ("int8", 0.071, 0.14, 1_500), ("T = 0.95", 0.064, 0.13, 2_000)],
)
def test_other_arithmetic_is_refused_within_some_tokens(named: str, rate: float, size: float, most: int) -> None:
    assert groups_until_refusal(rate, size, 10) * 10 <= most, named


def test_a_node_that_turns_bad_after_a_long_good_day_is_refused_about_as_soon() -> None:
    fresh, turned = groups_until_refusal(0.071, 0.14, 100), groups_until_refusal(0.071, 0.14, 100, good_first=50)
    assert fresh <= turned <= 2.5 * fresh


def states(tokens: TokenArray, number: int, evidence: NodeEvidence, now: int) -> NodeEvidence:
    group = products(tokens, TABLES)
    for _ in range(number):
        evidence = evidence.after(group, now)
    return evidence


def test_a_day_begins_anew_unless_it_ended_in_doubt() -> None:
    calm = states(np.repeat(RIGHT, 10), 5, NodeEvidence(), 1)
    assert calm.after(products(RIGHT, TABLES), DAY).daily.groups == 1
    doubtful = NodeEvidence()
    while not doubtful.daily.value().reaches(DOUBT_EVIDENCE):
        doubtful = states(OUTLIER, 1, doubtful, DAY - 1)
    assert doubtful.conclusion() == "doubt"
    later = doubtful.after(products(RIGHT, TABLES), DAY)
    assert later.daily.groups == doubtful.daily.groups + 1
    assert later.conclusion() == "doubt"


def test_a_key_that_is_never_bad_enough_in_one_day_is_refused_by_its_whole_life() -> None:
    evidence, generator, now = NodeEvidence(), np.random.default_rng(8), 0
    while not evidence.lifelong.value().reaches(LIFELONG_REFUSAL):
        now += DAY
        evidence = evidence.after(products(stream(generator, 100, 0.06, 0.01), TABLES), now)
        assert not evidence.daily.value().reaches(REFUSAL_EVIDENCE)
        assert now < 400 * DAY
    assert evidence.conclusion() == "refusal"


def test_a_mended_node_comes_back_by_honest_groups() -> None:
    evidence = states(OUTLIER, 40, NodeEvidence(), 1)
    assert evidence.conclusion() == "refusal"
    assert all(as_fraction(stake) <= 1 << MOST_POWER for stake in evidence.daily.stakes)
    for number in range(60):
        evidence = evidence.after(products(np.repeat(RIGHT, 200), TABLES), DAY + number)
        if evidence.conclusion() == "honest":
            return
    raise AssertionError("60 groups without a fault did not bring the node back")
