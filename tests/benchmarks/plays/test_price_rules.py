"""Rules of prices beside the run's, on the design's example."""

from fractions import Fraction

import pytest

from benchmarks.plays.price_rules import PRICE_RULES, PriceRule, clear_by
from echo2.coordinator.market.owner_cap import OWNER_CAP_SHARE
from echo2.coordinator.market.prices import Market, PriceTerms, clearing, within_budget
from tests.support.market import BEACON, QUARTER, design_offers

TERMS = PriceTerms(20_000_000, 60_000, 10**15, QUARTER, BEACON, Fraction(0), None)


def prices(market: Market) -> dict[str, int]:
    return {node.node.decode(): int(node.price) for node in market.nodes}


def test_pivot_is_the_runs_rule() -> None:
    assert clear_by("pivot", design_offers(), TERMS, {}) == within_budget(clearing(design_offers(), TERMS, {}), TERMS)


def test_a_uniform_price_is_the_cost_of_the_first_node_behind_the_active_ones() -> None:
    assert prices(clear_by("uniform", design_offers(), TERMS, {})) == {"B": 38_888, "D": 38_888, "A": 38_888}
    alone = TERMS._replace(need=60_000_000)
    assert set(prices(clear_by("uniform", design_offers(), alone, {})).values()) == {60_000}
    capped = TERMS._replace(cap=OWNER_CAP_SHARE)
    owners = {b"A": b"x", b"D": b"x"}
    assert prices(clear_by("uniform", design_offers(), capped, owners)) == dict.fromkeys("BDF", 40_000)


def test_pay_as_bid_and_the_lottery_pay_each_its_own_cost() -> None:
    costs = {offer.node.decode(): int(1000 * offer.cost) for offer in design_offers()}
    assert prices(clear_by("paybid", design_offers(), TERMS, {})) == {name: costs[name] for name in "BDA"}
    chosen = set()
    for seed in range(20):
        market = clear_by("random", design_offers(b"AF"), TERMS._replace(beacon=bytes([seed]) * 32), {})
        assert prices(market).items() <= costs.items()
        assert sum(offer.rate for offer in design_offers() if offer.node in market.activation.active) >= TERMS.need
        chosen.add(tuple(market.activation.active))
    assert len(chosen) > 5


def test_split_takes_everybody_and_shares_the_budget() -> None:
    market = clear_by("split", design_offers(), TERMS._replace(budget=10**9), {})
    assert sorted(market.activation.active) == [b"A", b"B", b"C", b"D", b"E", b"F"]
    assert int(sum(node.price * node.expected for node in market.nodes) / 1000) == 10**9


@pytest.mark.parametrize("rule", PRICE_RULES)
def test_without_offers_nobody_is_paid(rule: PriceRule) -> None:
    assert clear_by(rule, [], TERMS, {}).nodes == []
