"""Epochs of a market in memory: the product's entries and balances."""

from benchmarks.plays.market_play import QUARTER, MarketPlay, PlayTerms, steady
from echo2.coordinator.market.throughput import HOUR
from echo2.ledger.ledger_entries import FUND

TERMS = PlayTerms(need=60_000, reserve=4_000)
ASKS = {"a": 60_000, "b": 120_000}


def two(play: MarketPlay) -> None:
    play.benchmarked({"a": 60_000, "b": 60_000})


def test_a_node_is_paid_for_its_work_at_its_price() -> None:
    play = MarketPlay()
    two(play)
    one = play.epoch(TERMS, ["a", "b"], ASKS, lambda node, begin: steady(60_000, begin))
    assert len(one.active) == 1, "one newcomer, by lot, reaches the need"
    node = one.active[0]
    assert one.work(node) == 15_000
    assert one.pay(node) == 15 * ASKS[node] // 60 == one.spent
    assert play.belongs_to(node) == one.spent == -play.balances[FUND]


def test_an_ask_that_stays_sealed_changes_nothing() -> None:
    play = MarketPlay()
    two(play)
    play.epoch(TERMS, ["a", "b"], ASKS, lambda node, begin: [])
    play.epoch(TERMS, ["a", "b"], {"a": 70_000, "b": 130_000}, lambda node, begin: [], sealed_only=["a"])
    assert play.state.asks == {"a": 60_000, "b": 130_000}


def test_a_forfeit_takes_what_is_in_reach() -> None:
    play = MarketPlay()
    two(play)
    one = play.epoch(TERMS, ["a"], {"a": 60_000}, lambda node, begin: steady(60_000, begin))
    assert play.forfeits("a", 10**6) == one.spent
    assert play.belongs_to("a") == 0


def test_owners_of_several_nodes_are_capped() -> None:
    play = MarketPlay()
    two(play)
    terms = TERMS._replace(cap=400)
    one = play.epoch(terms, ["a", "b"], ASKS, lambda node, begin: steady(60_000, begin), {"a": b"o", "b": b"o"})
    assert sum(one.work(node) for node in one.active) == 15_000
    assert one.spent <= 15_000 * 2 * 400 // 1000


def test_a_steady_node_works_without_a_pause() -> None:
    groups = steady(120_000, 0)
    assert sum(one.weight for one in groups) == 120_000 * QUARTER // HOUR
    assert [one.received for one in groups[:-1]] == [one.sent for one in groups[1:]]
