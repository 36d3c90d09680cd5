"""Settings of a market on seeded populations: what changes who works and what an epoch costs."""

from fractions import Fraction

import pytest

from benchmarks.plays.market_play import PlayTerms
from benchmarks.plays.market_simulation import Population, TriedMarket, lines, tried
from echo2.coordinator.market.epoch_terms import MOST_MONEY

POPULATION = Population(12, 10**8, 60_000, Fraction(1, 2), Fraction(1, 10))
TERMS = PlayTerms(0, 5_000_000, MOST_MONEY, cap=400)


def rows(terms: PlayTerms = TERMS, population: Population = POPULATION) -> dict[str, TriedMarket]:
    return {one.name: one for one in tried(population, terms, epochs=3, seeds=1)}


def test_a_false_ask_gains_nothing_at_the_settings() -> None:
    assert rows()["as set"].gain == 0


def test_half_the_budget_binds_and_leaves_work_undone() -> None:
    told = rows()
    assert told["as set"].binding == 0
    assert told["half the budget"].binding == 1
    assert told["half the budget"].pay <= told["as set"].pay / 2
    assert told["half the budget"].short > told["as set"].short


def test_no_epoch_costs_more_than_its_budget() -> None:
    budget = 100_000_000
    assert all(one.pay <= budget for name, one in rows(TERMS._replace(budget=budget)).items())


def test_one_node_alone_is_paid_the_reserve_price() -> None:
    told = rows(TERMS._replace(cap=1000), POPULATION._replace(nodes=1, away=Fraction(0)))
    assert told["as set"].price == 5_000_000
    assert "no cap of owners" not in told


@pytest.mark.slow
def test_of_a_lone_owner_most_of_the_need_is_not_bought_and_of_three_owners_all_is() -> None:
    here = POPULATION._replace(away=Fraction(0), need=Fraction(1, 4))
    short = {nodes: rows(TERMS, here._replace(nodes=nodes))["as set"].short for nodes in (1, 2, 8)}
    assert round(short[1], 2) == 0.6, "docs/money.md, owner_cap"
    assert round(short[2], 2) == 0.2
    assert short[8] == 0
    assert rows(TERMS, here._replace(nodes=1))["no cap of owners"].short == 0


def test_the_table_names_its_columns() -> None:
    told = lines(list(rows().values()), TERMS.milliseconds, "USD")
    assert told[0].split() == [
        "nodes",
        "RE/h",
        "per",
        "RE",
        "an",
        "epoch",
        "overpaid",
        "short",
        "binds",
        "false",
        "ask",
    ]
    assert told[-1].startswith("per RE: mean price, USD")
