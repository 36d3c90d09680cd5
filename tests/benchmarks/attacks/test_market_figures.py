"""Attacks on pay in seeded markets: each has a figure beside its bound, and says what it is of."""

import pytest

from benchmarks.attacks.market_figures import (
    ATTACKS,
    MarketFigure,
    false_ask,
    figures,
    fleet_of_half,
    ground_lottery,
    squatting,
)


@pytest.mark.slow
def test_every_attack_stays_within_its_bound() -> None:
    every = figures(seed=1, markets=2)
    assert len({one.attack for one in every}) == len(ATTACKS)
    assert [one for one in every if not one.within] == []


def test_the_same_seed_gives_the_same_figures() -> None:
    assert fleet_of_half(3, 2) == fleet_of_half(3, 2)
    assert fleet_of_half(3, 2).note != fleet_of_half(4, 2).note


def test_a_figure_above_its_bound_is_said() -> None:
    assert not MarketFigure("an attack", 1.5, 1.0, "%").within


def test_a_node_without_leases_keeps_its_place_while_it_is_said_to_be_present() -> None:
    figure = squatting(0, 1)
    assert figure.figure == 0
    assert "one that takes none for 21.0, unless the coordinator states that it is not present" in figure.note


@pytest.mark.parametrize("seed", [0, 9])
def test_the_true_ask_is_the_best_one(seed: int) -> None:
    assert false_ask(seed, 3).figure == 0


@pytest.mark.slow
def test_ground_keys_win_every_place_where_the_beacon_is_known_and_their_share_where_it_is_not() -> None:
    figure = ground_lottery(0, 2)
    assert figure.note.endswith("with the beacon known: 100 %")
    assert 10 < figure.figure < figure.bound
