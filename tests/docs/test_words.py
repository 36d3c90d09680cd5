"""The words of the documents have bars, and the counted forms of language only become fewer."""

import pytest

from tests.support import words

MOST_WORDS = {"README": 1_200, "user pages": 47_440, "docs": 118_060}
MOST_FORMS = {
    "is no X": 35,
    "tell for report": 50,
    "he for a user": 4,
    "trailing alone, by name, in order": 53,
    "lines above 120 characters": 693,
}
ABOVE = {"operations.md"}
"""Pages that are still above 2,000 words."""


@pytest.mark.parametrize("kind", MOST_WORDS)
def test_the_documents_stay_short(kind: str) -> None:
    assert words.counted()[kind] <= MOST_WORDS[kind]


def test_each_page_stays_below_2000_words() -> None:
    assert set(words.pages_above(2_000)) == ABOVE


@pytest.mark.parametrize("form", words.FORMS)
def test_a_counted_form_becomes_no_more(form: str) -> None:
    assert words.forms()[form] <= MOST_FORMS[form]
