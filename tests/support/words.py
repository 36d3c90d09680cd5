"""Words of the documents by kind of page, and forms of language that only become fewer: `make report` prints both."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.documents import FENCE, SPAN, current_documents
from tests.support.paths import ROOT

DOCS: Final = ROOT / "docs"
CONTRIBUTORS: Final = ("architecture.md", "benchmarks.md", "libp2p-faults.md", "trust-conformance.md")
"""Pages of docs/ that are not for users."""
BY_HAND: Final = DOCS / "reference" / "rules.md"
"""The page of docs/reference that nobody generates."""
FORMS: Final[Mapping[str, str]] = {
    "is no X": r"\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|such\b)\w+",
    "tell for report": r"\b(?:tells?|told)\b",
    "he for a user": r"\b(?:he|his|him|himself)\b",
    "trailing alone, by name, in order": r"\b(?:alone|by name|in order)(?=[.;:])",
    "lines above 120 characters": r"^(?!\|)(?! {4})(?!.*\]\()(?!.*`[^`]{60,}`).{121,}$",
}
"""Forms of section 4 of the house's rules for language, as patterns of prose."""


def words(paths: Iterator[Path] | list[Path]) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def counted() -> dict[str, int]:
    """Return the words by kind of page. `docs`: docs/ without the log, the decisions and the generated reference."""
    every = sorted(DOCS.rglob("*.md"))
    apart = {name: [path for path in every if (DOCS / name) in path.parents] for name in ("log", "adr", "reference")}
    apart["reference"].remove(BY_HAND)
    kept = [path for path in every if not any(path in paths for paths in apart.values())]
    users = [path for path in DOCS.glob("*.md") if path.name not in CONTRIBUTORS]
    return {
        "README": words([ROOT / "README.md"]),
        "user pages": words(users),
        "protocol": words([path for path in kept if DOCS / "protocol" in path.parents]),
        "docs": words(kept),
        **{f"{name} (not in docs)": words(paths) for name, paths in apart.items()},
    }


def pages_above(most: int) -> dict[str, int]:
    """Return the pages for users with more words than `most`, and their words."""
    sizes = {path.name: words([path]) for path in sorted(DOCS.glob("*.md"))}
    return {name: size for name, size in sizes.items() if size > most}


def forms() -> dict[str, int]:
    """Return how often each form stands in today's documents, code left out; docs/reference follows the code."""
    texts = [path.read_text() for path in current_documents() if DOCS / "reference" not in path.parents]
    prose = [SPAN.sub("CODE", FENCE.sub("", text)) for text in texts]
    return {
        name: sum(len(re.findall(pattern, text, re.MULTILINE)) for text in (texts if "lines" in name else prose))
        for name, pattern in FORMS.items()
    }
