"""A model's answers as a policy, by a stand-in for the model."""

import math

import pytest

from echo2.tasks.byte_text import ByteText
from echo2.tasks.poker.model_policy import AskedMoves, measure, questions
from echo2.tasks.poker.opponents import kuhn_equilibrium

TEXT = ByteText()


@pytest.fixture(autouse=True)
def _extra() -> None:
    for library in ("pokerkit", "pyspiel"):
        pytest.importorskip(library, reason="needs the extra poker")


def told(asked: AskedMoves, legal: float) -> list[float]:
    """Answer as a model would that plays the equilibrium with probability `legal`, and else no legal move."""
    return [math.log(max(chance * legal, 1e-300)) for chance in kuhn_equilibrium(asked.situation)]


def test_a_model_that_plays_the_equilibrium_loses_nothing_whatever_else_it_says() -> None:
    asked = questions("kuhn", TEXT, hands=2)
    assert len(asked) == 2 * 12
    measured = measure("kuhn", asked, [told(one, 0.25) for one in asked])
    assert measured == pytest.approx((0.0, 0.0, 0.25), abs=1e-9)


def test_a_model_that_gives_no_legal_move_any_probability_counts_as_uniform() -> None:
    asked = questions("kuhn", TEXT, hands=1)
    measured = measure("kuhn", asked, [[-math.inf] * len(one.moves) for one in asked])
    assert measured == pytest.approx((0.458333, 0.916667, 0.0), abs=1e-6)


def test_numbers_are_policies_of_their_own_and_figures_their_means() -> None:
    asked = questions("kuhn", TEXT, hands=2)
    first = asked[0].number
    answers = [told(one, 1.0) if one.number == first else [0.0] * len(one.moves) for one in asked]
    assert measure("kuhn", asked, answers).exploitability == pytest.approx(0.458333 / 2, abs=1e-6)


def test_a_question_has_the_tokens_of_the_episode_and_of_the_moves() -> None:
    one = questions("kuhn", TEXT, hands=1)[0]
    assert TEXT.decode(one.before) == f"kuhn {one.number} card {one.situation.cards}. c or b>"
    assert one.moves == [[*TEXT.encode("c"), TEXT.eos], [*TEXT.encode("b"), TEXT.eos]]
