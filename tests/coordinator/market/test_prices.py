"""Prices: the exact examples of the design, the cap worked out by hand, budgets, and the best ask."""

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.coordinator.market.activation import ActivationTerms, Offer, order_offers
from echo2.coordinator.market.epoch_pay import EpochPay, pay_nodes
from echo2.coordinator.market.owner_cap import OWNER_CAP_SHARE, cap_offers
from echo2.coordinator.market.prices import Market, PriceTerms, clearing, delivered_weight, within_budget
from tests.support.market import BEACON, QUARTER, design_offers

PLENTY = 10**15


def terms(need: int = 20_000, budget: int = PLENTY, cap: Fraction | None = None, reserve: int = 60_000) -> PriceTerms:
    """Return terms in RE per hour, of 15 minutes, without newcomers' share as the design's examples have none."""
    return PriceTerms(1000 * need, reserve, budget, QUARTER, BEACON, Fraction(0), cap)


def clear_market(offers: list[Offer], asked: PriceTerms, owners: dict[bytes, bytes]) -> Market:
    return within_budget(clearing(offers, asked, owners), asked)


def market(incumbents: bytes = b"", owners: dict[bytes, bytes] | None = None, **kwargs: object) -> Market:
    return clear_market(design_offers(incumbents), terms(**kwargs), owners or {})  # type: ignore[arg-type]


def prices(result: Market) -> dict[str, int]:
    return {node.node.decode(): int(node.price) for node in result.nodes}


def full_pay(result: Market) -> dict[str, int]:
    """Return what each earns that delivers exactly its counted rate."""
    pay = pay_nodes(result.nodes, [int(node.expected) for node in result.nodes])
    return {node.node.decode(): amount for node, amount in zip(result.nodes, pay.pay, strict=True)}


def test_the_designs_example_without_incumbents() -> None:
    result = market()
    assert result.activation.active == [b"B", b"D", b"A"]
    assert result.activation.rate == 27_500_000
    assert prices(result) == {"B": 33_333, "D": 38_888, "A": 38_888}
    assert full_pay(result) == {"B": 37_500_000, "D": 136_111_111, "A": 87_500_000}
    assert not result.binding


def test_the_designs_example_with_incumbents() -> None:
    result = market(b"AF")
    assert prices(result) == {"B": 32_142, "A": 38_888, "D": 36_944}
    assert full_pay(result) == {"B": 36_160_714, "A": 87_500_000, "D": 129_305_555}


def test_the_designs_example_with_a_need_that_takes_all() -> None:
    result = market(need=60_000)
    assert prices(result) == {"A": 50_000, "B": 50_000, "C": 60_000, "D": 50_000, "E": 50_000, "F": 50_000}
    assert full_pay(result) == {
        "A": 112_500_000, "B": 56_250_000, "C": 600_000_000, "D": 175_000_000, "E": 18_750_000, "F": 225_000_000,
    }  # fmt: skip


def test_an_example_of_the_cap_worked_out_by_hand() -> None:
    # A and D are one owner's; 40 % of 20,000 are 8,000. In order, with what counts: B 4,500, D 8,000, A nothing more,
    # F 8,000: 20,500 reach the need. Without B: D 8, A 0, F 16, E 17.5, C 25.5: C. Without D: A counts 8,000 and uses
    # its owner's share up: A. Without F: B 4.5, D 12.5, A 12.5, E 14, C 22: C.
    result = market(cap=OWNER_CAP_SHARE, owners={b"A": b"x", b"D": b"x"})
    assert result.activation.active == [b"B", b"D", b"F"]
    assert result.activation.rate == 20_500_000
    assert prices(result) == {"B": 50_000, "D": 33_333, "F": 50_000}
    assert full_pay(result) == {"B": 56_250_000, "D": 66_666_666, "F": 100_000_000}
    more = pay_nodes(result.nodes, [10_000_000] * 3).pay
    assert more[1:] == [66_666_666, 100_000_000], "capped nodes are paid for what counts of them"


def test_one_owner_with_everything_supplies_two_fifths() -> None:
    result = market(cap=OWNER_CAP_SHARE, owners={offer.node: b"x" for offer in design_offers()})
    assert result.activation.rate == 8_000_000
    assert result.activation.short == 12_000_000
    assert prices(result)["B"] < 60_000


def test_a_node_above_the_reserve_price_and_no_node_at_all() -> None:
    assert prices(market(reserve=40_000, need=60_000)) == dict.fromkeys("BDAFE", 40_000)
    assert market(reserve=30_000).nodes == []
    assert clear_market([], terms(), {}).nodes == []
    assert market(need=0).nodes == []


def test_newcomers_fill_what_measured_nodes_lack_at_their_own_cost() -> None:
    old = [Offer(b"old", 30_000_000, 1_000_000)]
    new = [Offer(b"new%d" % number, 20_000_000, 500_000, newcomer=True) for number in range(40)]
    result = clear_market([*old, *new], terms(need=10_000), {})
    assert result.activation.short == 0
    assert len(result.nodes) == 1 + 18
    assert prices(result)["old"] == 60_000, "the others alone never reach the need"
    assert {int(node.price) for node in result.nodes[1:]} == {40_000}
    first = clear_market(new, terms(need=10_000), {})
    assert len(first.nodes) == 20, "a new run starts at once"


# budget


def test_a_budget_that_does_not_bind_leaves_room_for_more_than_expected() -> None:
    exact = sum(full_pay(market()).values())
    result = market(budget=2 * exact + 4)
    assert not result.binding
    for node in result.nodes:
        assert node.most > 2 * node.expected
    assert total(result, 10**12).spent <= 2 * exact + 4


def total(result: Market, work: int) -> EpochPay:
    return pay_nodes(result.nodes, [work] * len(result.nodes))


def test_where_the_budget_binds_the_cheapest_stay_and_nobody_is_paid_below_its_cost() -> None:
    # Q_1 = 1,125 RE, Q_2 = 4,625, Q_3 = 6,875. D costs 32,142 per RE; with 150,000,000 two stay at 32,432, not three
    # at 21,818.
    result = market(budget=150_000_000)
    assert result.binding
    assert prices(result) == {"B": 32_432, "D": 32_432}
    assert sum(full_pay(result).values()) <= 150_000_000
    assert market(budget=30_000_000).nodes == []
    assert market(budget=0).nodes == []


OFFERS = st.lists(
    st.tuples(st.integers(1_000, 10**9), st.integers(1, 10**7), st.booleans(), st.booleans(), st.integers(0, 4)),
    max_size=12,
)


def of(rows: list[tuple[int, int, bool, bool, int]]) -> tuple[list[Offer], dict[bytes, bytes]]:
    """Return offers and owners; owner 0 stands for none."""
    offers = [Offer(b"n%d" % at, ask, rate, old, new) for at, (ask, rate, old, new, _) in enumerate(rows)]
    return offers, {b"n%d" % at: b"o%d" % row[4] for at, row in enumerate(rows) if row[4]}


@settings(deadline=None)
@given(
    OFFERS,
    st.integers(0, 10**8),
    st.integers(1, 10**7),
    st.integers(0, 10**12),
    st.booleans(),
    st.integers(0, 10**10),
)
def test_no_epoch_costs_more_than_its_budget_and_nobody_is_paid_below_cost(
    rows: list[tuple[int, int, bool, bool, int]],
    need: int,
    reserve: int,
    budget: int,
    capped: bool,
    work: int,
) -> None:
    offers, owners = of(rows)
    asked = PriceTerms(need, reserve, budget, QUARTER, BEACON, Fraction(1, 20), OWNER_CAP_SHARE if capped else None)
    result = clear_market(offers, asked, owners)
    costs = {offer.node: 1000 * offer.cost for offer in offers}
    assert total(result, work).spent <= budget
    assert all(costs[node.node] <= node.price <= reserve for node in result.nodes)
    rates = {offer.node: offer.rate for offer in offers}
    per_owner: dict[bytes, Fraction] = {}
    for node in result.nodes:
        assert node.expected <= delivered_weight(rates[node.node], QUARTER)
        owner = owners.get(node.node, node.node)
        per_owner[owner] = per_owner.get(owner, Fraction(0)) + node.expected
    if capped:
        assert all(amount <= delivered_weight(int(OWNER_CAP_SHARE * need), QUARTER) for amount in per_owner.values())


FINE = 10**12
"""Parts of a unit: asks are whole numbers, and one is told from another by a millionth."""


@settings(deadline=None)
@given(OFFERS, st.integers(1, 10**7), st.booleans())
def test_a_price_is_the_highest_cost_at_which_a_node_is_active(
    rows: list[tuple[int, int, bool, bool, int]], need: int, capped: bool
) -> None:
    rows = [(ask, rate, old, False, owner) for ask, rate, old, _, owner in rows]
    offers, owners = of(rows)
    offers = [offer._replace(ask=offer.ask * FINE) for offer in offers]
    reserve = 10**6 * FINE
    asked = PriceTerms(need, reserve, 10**30 * FINE, QUARTER, BEACON, Fraction(0), OWNER_CAP_SHARE if capped else None)
    for priced in clear_market(offers, asked, owners).nodes:
        for factor, active in ((Fraction(999_999, 10**6), True), (Fraction(1_000_001, 10**6), False)):
            changed = [
                offer._replace(ask=int(priced.price / 1000 * factor * offer.rate))
                if offer.node == priced.node
                else offer
                for offer in offers
            ]
            again = {one.node: one.price for one in clear_market(changed, asked, owners).nodes}
            assert (priced.node in again) == active
            if active:
                assert again[priced.node] == priced.price, "the price does not depend on the node's own ask"


@pytest.mark.slow
def test_the_true_cost_is_the_best_ask_with_and_without_cap() -> None:
    chance = random.Random(5)
    for capped in (None, OWNER_CAP_SHARE):
        for _ in range(20):
            asks = [(chance.randint(10**7, 10**8), chance.randint(10**5, 10**6)) for _ in range(12)]
            offers = [Offer(b"n%d" % at, ask, rate) for at, (ask, rate) in enumerate(asks)]
            asked = PriceTerms(3_000_000, 200_000, 10**30, QUARTER, BEACON, Fraction(0), capped)
            true = profits(offers, offers, asked)
            for at, offer in enumerate(offers):
                for percent in (50, 90, 99, 101, 110, 200):
                    false = [*offers[:at], offer._replace(ask=offer.ask * percent // 100), *offers[at + 1 :]]
                    assert profits(false, offers, asked)[offer.node] <= true[offer.node]


def profits(offers: list[Offer], true: list[Offer], asked: PriceTerms) -> dict[bytes, Fraction]:
    costs = {offer.node: 1000 * offer.cost for offer in true}
    found = dict.fromkeys(costs, Fraction(0))
    for node in clear_market(offers, asked, {}).nodes:
        found[node.node] = (node.price - costs[node.node]) * node.expected
    return found


def test_what_counts_of_an_owner_is_handed_out_in_order() -> None:
    offers = order_offers(design_offers(), ActivationTerms(0, None, Fraction(0), BEACON))
    counts = cap_offers(offers, {b"B": b"x", b"A": b"x"}, 8_000_000)
    assert [offer.counted_rate // 1000 for offer in counts] == [4_500, 8_000, 3_500, 8_000, 1_500, 8_000]
    assert cap_offers(offers, {}, None) == offers


@pytest.mark.parametrize("need", [19_999, 20_000, 20_001])
def test_the_need_is_reached_exactly_by_the_last_active_node(need: int) -> None:
    offers = [Offer(bytes([at]), 1000 * at, 5_000_000) for at in range(1, 9)]
    assert len(clear_market(offers, terms(need=need), {}).nodes) == (4 if need <= 20_000 else 5)
