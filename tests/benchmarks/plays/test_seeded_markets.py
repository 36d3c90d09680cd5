"""Markets drawn by seed, and the gain of asks that are not the cost."""

from fractions import Fraction

from benchmarks.plays.seeded_markets import (
    MarketSetting,
    SeededMarket,
    all_ask_high,
    false_asks,
    one_asks_high,
)
from echo2.coordinator.market.owner_cap import OWNER_CAP_SHARE


def test_under_pivot_no_false_ask_gains() -> None:
    market = SeededMarket(MarketSetting(cap=OWNER_CAP_SHARE), 5)
    assert all(market.gain(place, false_asks(place)) == 0 for place in range(0, 40, 7))


def test_under_pay_as_bid_an_active_node_gains_by_asking_more() -> None:
    market = SeededMarket(MarketSetting("paybid"), 5)
    first = min(range(40), key=lambda place: market.offers[place].cost)
    assert market.gain(first, false_asks(first)) > 10


def test_pay_as_bid_at_true_costs_is_the_least_that_can_be_paid() -> None:
    assert SeededMarket(MarketSetting("paybid"), 5).overpaid == 0
    assert SeededMarket(MarketSetting("pivot"), 5).overpaid > 0


def test_an_owner_is_paid_for_no_more_than_the_cap() -> None:
    market = SeededMarket(MarketSetting(cap=OWNER_CAP_SHARE, owned=20), 5)
    assert market.share(market.true, 0) <= OWNER_CAP_SHARE
    assert SeededMarket(MarketSetting(owned=20), 5).share(SeededMarket(MarketSetting(owned=20), 5).true, 0) > 0


def test_owners_raise_one_ask_or_all() -> None:
    market = SeededMarket(MarketSetting(owned=2), 5)
    assert {place for one in one_asks_high(market, 3) for place in one} == {2, 3}
    assert all(one.keys() == {2, 3} for one in all_ask_high(market, 3))
    assert market.gain(3, one_asks_high(market, 3)) >= Fraction(0)
