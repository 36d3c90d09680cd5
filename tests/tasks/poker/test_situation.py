"""Test a player's texts: short texts of the demo's characters, and moves read from anything."""

import pytest

from echo2.tasks.byte_text import ByteText
from echo2.tasks.poker.situation import Event, Situation, again, read, segments, tokens_before
from echo2.tasks.tokenizer import CHARACTERS

SECOND = Situation("kuhn", 1, "k", (Event("they", "b"),), ("f", "c"))
CHECKED = Situation("kuhn", 0, "q", (Event("you", "c", "c or b"), Event("they", "b")), ("f", "c"))
FLOP = Situation(
    "holdem", 1, "ah kd",
    (Event("they", "c"), Event("you", "c", "pot 4, call 0. c or b4 to b200"), Event("board", "2c 7d th")),
    ("c", "b"), low=2, high=198, pot=4, owed=0,
)  # fmt: skip


def test_a_hand_is_told_in_a_few_tens_of_characters() -> None:
    assert segments(271828, SECOND) == ["kuhn 271828 card k. b. f or c>"]
    assert segments(271828, CHECKED) == ["kuhn 271828 card q. c or b>", "b. f or c>"]
    assert segments(7, FLOP) == [
        "holdem 7 big blind, cards ah kd. c. pot 4, call 0. c or b4 to b200>",
        "board 2c 7d th. pot 4, call 0. c or b2 to b198>",
    ]
    assert again(SECOND) == "no. f or c>"


@pytest.mark.parametrize("situation", [SECOND, CHECKED, FLOP])
def test_the_demos_tokenizer_has_all_characters(situation: Situation) -> None:
    assert set("".join(segments(12, situation)) + again(situation)) <= set(CHARACTERS)


READ = {
    "a letter": (SECOND, "c", "c"),
    "blanks and capitals": (SECOND, " F\n", "f"),
    "a bet where only call and fold are legal": (SECOND, "b", None),
    "a size where there is none": (SECOND, "b4", None),
    "a word": (SECOND, "call", None),
    "nothing": (SECOND, "", None),
    "a bet": (FLOP, "b12", "b12"),
    "a bet with a blank and zeros": (FLOP, "b 012", "b12"),
    "the least bet": (FLOP, "b2", "b2"),
    "less than the least": (FLOP, "b1", None),
    "more than all": (FLOP, "b199", None),
    "no size": (FLOP, "b", None),
    "a fold where a check is free": (FLOP, "f", None),
    "digits of another script": (FLOP, "b\u0661\u0662", None),
    "too many digits": (FLOP, "b" + "0" * 5_000 + "12", None),
}


@pytest.mark.parametrize(("situation", "said", "move"), READ.values(), ids=READ)
def test_a_move_is_read(situation: Situation, said: str, move: str | None) -> None:
    assert read(said, situation) == move


def test_the_tokens_before_a_move_are_texts_and_own_moves_with_their_ends() -> None:
    text = ByteText()
    expected = [*text.encode("kuhn 9 card q. c or b>"), *text.encode("c"), text.eos, *text.encode("b. f or c>")]
    assert tokens_before(9, CHECKED, text) == expected
