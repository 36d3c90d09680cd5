"""The cheapest nodes that reach the need are active, and each other one hears at which ask it would be."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.market.activation import Activation, ActivationTerms, Offer, activate_offers

NANO = 1_000_000_000
# The examples of the design: asks in dollars per hour, rates in RE per hour.
ASKS = {
    b"A": (Fraction("0.30"), 9_000), b"B": (Fraction("0.14"), 4_500), b"C": (Fraction(2), 40_000),
    b"D": (Fraction("0.45"), 14_000), b"E": (Fraction("0.06"), 1_500), b"F": (Fraction("0.70"), 18_000),
}  # fmt: skip
RESERVE = Fraction(60)
"""60,000 nano per RE."""


def of(need: int, incumbents: bytes = b"") -> Activation:
    offers = [
        Offer(node, int(ask * NANO), 1000 * rate, incumbent=node in incumbents) for node, (ask, rate) in ASKS.items()
    ]
    return activate_offers(offers, ActivationTerms(1000 * need, RESERVE, Fraction(1, 10), b"beacon"))


def test_the_cheapest_nodes_that_reach_the_need_are_active() -> None:
    result = of(20_000)
    assert result.active == [b"B", b"D", b"A"]
    assert result.rate == 27_500_000
    assert [one.node for one in result.standby] == [b"F"]


def test_incumbents_are_preferred_by_a_twentieth() -> None:
    assert of(20_000, incumbents=b"AF").active == [b"B", b"A", b"D"]


def test_all_within_the_reserve_are_active_where_the_need_is_greater() -> None:
    result = of(60_000)
    assert sorted(result.active) == [b"A", b"B", b"C", b"D", b"E", b"F"]
    assert of(100_000).short == 100_000_000 - 87_000_000
    assert of(100_000).standby == []


def test_a_node_above_the_reserve_is_left_out() -> None:
    dear = Offer(b"Z", 61 * 1000, 1000)
    assert activate_offers([dear], ActivationTerms(1000, RESERVE, Fraction(0), b"")).active == []


def test_where_nobody_asks_for_money_everybody_is_active() -> None:
    offers = [Offer(bytes([number]), 0, 1_000) for number in range(9)]
    result = activate_offers(offers, ActivationTerms(2_000, None, Fraction(1, 10), b""))
    assert result.active == [offer.node for offer in offers]
    assert result.standby == []


def test_newcomers_have_half_of_their_share_and_the_whole_of_it_where_others_are_short() -> None:
    old = [Offer(b"old%d" % number, 1_000, 1_000) for number in range(20)]
    new = [Offer(b"new%d" % number, 100, 100, newcomer=True) for number in range(40)]
    terms = ActivationTerms(10_000, None, Fraction(1, 5), b"beacon")
    enough = activate_offers([*old, *new], terms).active
    assert sum(node.startswith(b"new") for node in enough) == 10  # 100 each, half of a fifth of 10,000
    assert sum(node.startswith(b"old") for node in enough) == 9
    short = activate_offers([*old[:5], *new], terms)
    assert sum(node.startswith(b"new") for node in short.active) == 20
    assert short.short == 10_000 - 5_000 - 2_000
    alone = activate_offers(new, terms)
    assert len(alone.active) == 40


def test_a_newcomer_dearer_than_the_first_node_that_is_not_needed_waits_until_nodes_are_lacking() -> None:
    old = [Offer(b"old%d" % number, 1_000 + 100 * number, 1_000) for number in range(4)]
    new = [Offer(b"cheap", 1_200, 1_000, newcomer=True), Offer(b"dear", 1_201, 1_000, newcomer=True)]
    terms = ActivationTerms(2_000, None, Fraction(1), b"beacon")
    assert set(activate_offers([*old, *new], terms).active) == {b"cheap", b"old0"}
    assert b"dear" in activate_offers([*old[:1], new[1]], terms).active
    assert b"dear" in activate_offers(new[1:], terms).active
    staying = old[2]._replace(incumbent=True)
    assert b"cheap" not in activate_offers([*old[:2], staying, *new], terms).active


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 20_000),
)
def test_a_node_that_stands_by_is_active_at_the_ask_that_it_hears(
    values: list[tuple[int, int, bool]], need: int
) -> None:
    offers = [Offer(n.to_bytes(2), 1000 * ask, rate, incumbent) for n, (ask, rate, incumbent) in enumerate(values)]
    terms = ActivationTerms(need, None, Fraction(0), b"beacon")
    before = activate_offers(offers, terms)
    assert before.rate >= need or before.short == need - before.rate
    for one in before.standby:
        lower = [offer._replace(ask=one.active_at - 1) if offer.node == one.node else offer for offer in offers]
        if one.active_at >= 1 and any(offer.ask for offer in lower):
            assert one.node in activate_offers(lower, terms).active


@pytest.mark.parametrize("need", [0, 1])
def test_without_a_need_or_an_offer_nothing_breaks(need: int) -> None:
    assert activate_offers([], ActivationTerms(need, None, Fraction(1, 10), b"")).active == []
