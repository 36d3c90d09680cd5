"""An attack by choice is held only where it was tried, and where its groups were refused for what it does."""

from typing import Any

import pytest

from benchmarks.attacks.selection import DropLow, NearTies

PLACE: Any = None
"""Of the run nothing is read: its figures are here."""


@pytest.mark.parametrize(
    ("codes", "held"),
    [
        (["seeded-choice", "not-generated", "seeded-choice"], True),
        (["seeded-choice", "ok", "seeded-choice"], False),
        (["seeded-choice", "late", "seeded-choice"], False),
        ([], False),
    ],
    ids=["refused as not of their seeds", "one was accepted", "one came too late to be judged", "none was handed in"],
)
def test_the_best_of_four_is_held_where_each_group_was_refused_as_not_of_its_seeds(
    codes: list[str], held: bool
) -> None:
    assert NearTies(tokens=3000, variants=1, codes=codes).finding(PLACE).is_held == held


def test_the_best_of_four_is_broken_by_too_many_other_right_answers() -> None:
    assert NearTies(tokens=3000, variants=3, codes=["seeded-choice"]).finding(PLACE).is_held
    assert not NearTies(tokens=3000, variants=4, codes=["seeded-choice"]).finding(PLACE).is_held


def test_keys_that_left_no_prompt_out_have_shown_nothing() -> None:
    crowd = DropLow()
    crowd.seen = 9
    assert not crowd.finding(PLACE).is_held
