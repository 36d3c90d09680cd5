"""The edge of a nucleus: masses, and where a node could choose."""

import pytest
import torch

from benchmarks.trust.nucleus_edges import ALLOWANCE, Position, _edge, _masses

CHANCES = torch.tensor([[0.5, 0.01, 0.43, 0.06]])


def test_the_mass_of_a_token_is_that_of_the_more_probable_ones() -> None:
    assert _masses(CHANCES.log())[0].tolist() == pytest.approx([0.0, 0.99, 0.5, 0.93], abs=1e-6)


def position(winner: int) -> Position:
    scores = torch.zeros(1, 4)
    scores[0, winner] = 1.0
    scorer = _masses(CHANCES.log())
    return Position(scorer, scorer + 0.02, CHANCES, scores, torch.ones(1, dtype=torch.bool))


def test_a_choice_is_free_where_an_edge_token_wins_and_nowhere_else() -> None:
    """The engine has masses that are 0.02 higher: token 3 at 0.93 is on the edge of 0.95, token 1 at 0.99 is not."""
    count, d, edge, mass, free, _ = _edge([position(0), position(3), position(1)])
    assert d == pytest.approx(0.02 * ALLOWANCE, abs=1e-5)
    assert (count, edge) == (3, 1.0)
    assert mass == pytest.approx(0.06)
    assert free == pytest.approx(1 / 3)
