"""The choice of a position's prompt by the variance of its last groups."""

from collections import Counter

import msgspec
import pytest

from echo2.coordinator.prompts.prompt_choice import (
    CANDIDATES,
    LEAST_NEUTRAL_WEIGHT,
    PLACES,
    WEIGHT_FLOOR_DIVISOR,
    ChoiceSummary,
    PromptFigures,
    candidates,
    choose_prompt,
    weights,
)
from echo2.coordinator.prompts.prompts import PromptOrder

HALF = 250_000
NEVER = PromptFigures()
DEAD = PromptFigures(PLACES, 0)
"""Solved always or never."""
OPEN = PromptFigures(PLACES, HALF)
"""Solved every other time."""


def shares(figures: list[PromptFigures], neutral: int = HALF // 2, positions: int = 4_000) -> list[float]:
    """Return how often each of the first candidates is chosen. All others were solved always."""
    order = PromptOrder(1_000, seed=5)
    summary = ChoiceSummary(neutral, figures + [DEAD] * (CANDIDATES - len(figures)))
    counted: Counter[int] = Counter()
    for position in range(positions):
        counted[candidates(order, position).index(choose_prompt(order, position, summary))] += 1
    return [counted[number] / positions for number in range(CANDIDATES)]


def test_a_choice_made_again_from_its_summary_is_the_same() -> None:
    summary = ChoiceSummary(100, [PromptFigures(2, 70 * number) for number in range(CANDIDATES)])
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(summary), type=ChoiceSummary)
    first = [choose_prompt(PromptOrder(500, seed=3), position, summary) for position in range(200)]
    assert first == [choose_prompt(PromptOrder(500, seed=3), position, stored) for position in range(200)]
    assert first != [choose_prompt(PromptOrder(500, seed=4), position, stored) for position in range(200)]
    assert len(set(first)) > 100


@pytest.mark.slow
def test_a_prompt_that_varies_comes_more_often_and_a_solved_one_at_times() -> None:
    varying, never, *dead = shares([OPEN, NEVER])
    assert varying / never == pytest.approx(2, rel=0.2)
    assert never / (sum(dead) / len(dead)) == pytest.approx(WEIGHT_FLOOR_DIVISOR, rel=0.2)
    assert min(dead) > 0


@pytest.mark.slow
def test_prompts_that_were_never_tried_are_chosen_alike() -> None:
    every = shares([NEVER] * CANDIDATES)
    assert min(every) > 0.8 / CANDIDATES
    assert max(every) < 1.2 / CANDIDATES


def test_one_group_moves_a_weight_by_one_of_its_places() -> None:
    neutral = HALF // 2
    never, one, whole = weights(ChoiceSummary(neutral, [NEVER, PromptFigures(1, 0), DEAD]))
    assert (never, one) == (PLACES * neutral, (PLACES - 1) * neutral)
    assert whole == PLACES * neutral // WEIGHT_FLOOR_DIVISOR


def test_before_any_group_varied_the_untried_are_preferred_to_the_tried() -> None:
    never, dead = weights(ChoiceSummary(0, [NEVER, DEAD]))
    assert (never, dead) == (PLACES * LEAST_NEUTRAL_WEIGHT, PLACES * LEAST_NEUTRAL_WEIGHT // WEIGHT_FLOOR_DIVISOR)


def test_every_prompt_is_a_candidate_once_per_pass() -> None:
    order = PromptOrder(10 * CANDIDATES, seed=1)
    seen = Counter(index for position in range(20) for index in candidates(order, position))
    assert set(seen.values()) == {2}
    assert len(seen) == order.size


def test_one_candidate_or_none_is_the_order_itself() -> None:
    order = PromptOrder(50, seed=2)
    for figures in ([], [OPEN]):
        summary = ChoiceSummary(1, figures)
        assert [choose_prompt(order, position, summary) for position in range(120)] == [
            order.index(position) for position in range(120)
        ]
