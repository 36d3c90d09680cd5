"""Ends of turns: one or several tokens, compared in one place."""

import numpy as np
import pytest

from echo2.tasks import tokenizer
from echo2.tasks.turn_ends import Ends, end_mask, fault_of_turn, is_end, without_end

ONE: Ends = (1,)
SEVERAL: Ends = (1, 7, 40)


@pytest.mark.parametrize("ends", [ONE, SEVERAL])
def test_each_end_ends_a_turn_and_no_other_token_does(ends: Ends) -> None:
    tokens = np.array([5, 1, 7, 40, 6], np.int32)
    assert end_mask(tokens, ends).tolist() == [is_end(int(token), ends) for token in tokens]
    assert end_mask(tokens, ends).sum() == len(ends)


TURNS = {
    "ended by the first": ([5, 6, 1], False, None),
    "ended by another": ([5, 6, 40], False, None),
    "an end alone": ([7], False, None),
    "cut at the limit": ([5, 6], True, None),
    "ended at the limit": ([5, 7], True, None),
    "cut before the limit": ([5, 6], False, "without end-of-sequence"),
    "another end inside": ([5, 40, 1], False, "tokens follow the end"),
    "an end inside, cut at the limit": ([1, 5], True, "tokens follow the end"),
}


@pytest.mark.parametrize("what", TURNS)
def test_a_turn_has_one_end_at_its_end_or_is_cut_at_the_limit(what: str) -> None:
    tokens, at_limit, sentence = TURNS[what]
    fault = fault_of_turn(np.array(tokens), SEVERAL, at_limit=at_limit)
    assert fault is None if sentence is None else sentence in str(fault)


def test_a_run_with_one_end_samples_on_at_the_others() -> None:
    assert fault_of_turn(np.array([5, 40, 1]), ONE, at_limit=False) is None


def test_text_has_no_end_whichever_it_is_and_keeps_those_inside() -> None:
    text = tokenizer.FileTokenizer(tokenizer.char_tokenizer(), 1, 63)
    seven = text.encode("7")
    assert (text.eos, text.ends) == (1, (1, 63))
    assert [text.decode([*seven, end]) for end in (1, 63)] == ["7", "7"]
    assert text.decode([63, *seven]) == "<63>7"
    assert list(without_end([], SEVERAL)) == []
