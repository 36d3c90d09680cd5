"""The language of README, CONTRIBUTING and docs: each sentence has a concrete subject."""

import re
from pathlib import Path

import pytest

from tests.support.documents import FENCE, SPAN, current_documents
from tests.support.paths import ROOT

RELATIVES = "Who|What|Whoever|Whatever|Whose|Whom|Nobody|Somebody|Nothing|Everybody|Anybody"
OPENING = re.compile(rf"(?:^|[.!?:;] |\| |\*\* ?|\n[-*] |\n\d+\. |\n\n)({RELATIVES})\b")
PARABLES = re.compile(r"\b(knock(?:s|ed|ing)?|liars?|strangers?|courier|shelf)\b", re.IGNORECASE)


def prose(text: str) -> str:
    """Return a document without its code."""
    return SPAN.sub("CODE", FENCE.sub("", text))


def excerpts(pattern: re.Pattern[str], text: str) -> list[str]:
    return [text[match.start() : match.end() + 60].strip().replace("\n", " ") for match in pattern.finditer(text)]


@pytest.mark.parametrize("path", current_documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_opens_with_a_free_relative(path: Path) -> None:
    assert excerpts(OPENING, prose(path.read_text())) == []


@pytest.mark.parametrize("path", current_documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_speaks_in_parables(path: Path) -> None:
    assert excerpts(PARABLES, prose(path.read_text())) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Who asks is told.", 1),
        ("A rule. What comes late is refused.", 1),
        ("1. It waits.\n2. Whoever reads gives credit.", 1),
        ("| a | Nobody waits |", 1),
        ("The node says who it is, and nothing else. A node knows what it holds.", 0),
    ],
)
def test_the_scan_finds_free_relatives_at_the_start_of_a_sentence(text: str, found: int) -> None:
    assert len(excerpts(OPENING, text)) == found
