"""The words of the documents have bars, and the counted forms of language only become fewer."""

import pytest

from tests.support import words

MOST_WORDS = {"README": 1_200, "user pages": 22_000, "docs": 95_000}
MOST_FORMS = {
    "is no X": 0,
    "tell for report": 0,
    "he for a user": 0,
    "trailing alone, by name, in order": 0,
    "lines above 120 characters": 1,
}


@pytest.mark.parametrize("kind", MOST_WORDS)
def test_the_documents_stay_short(kind: str) -> None:
    assert words.counted()[kind] <= MOST_WORDS[kind]


def test_each_page_stays_below_2000_words() -> None:
    assert words.pages_above(2_000) == {}


@pytest.mark.parametrize("form", words.FORMS)
def test_a_counted_form_becomes_no_more(form: str) -> None:
    assert words.forms()[form] <= MOST_FORMS[form]
