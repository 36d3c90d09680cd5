"""The project's documents as tests read them: a list of them, their code, their tables."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

FENCE = re.compile(r"^( *)(```+|~~~+)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def documents() -> list[Path]:
    """Return every document, with those that describe an earlier state (the log, the decision records)."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def current_documents() -> list[Path]:
    """Return the documents that describe the code as it is today."""
    return [path for path in documents() if not {"adr", "log"} & set(path.relative_to(ROOT).parts)]


def code_lines(text: str) -> Iterator[str]:
    """Yield each line of each fenced block (a trailing backslash joins lines, a prompt is dropped), then each inline
    span."""
    for match in FENCE.finditer(text):
        yield from (text_line.strip().removeprefix("$ ") for text_line in match[3].replace("\\\n", " ").splitlines())
    yield from (match[1].strip() for match in SPAN.finditer(FENCE.sub("", text)))


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield each Markdown table as rows of cells, the header first, without the line of dashes."""
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in row.strip("|\n ").split(" | ")] for row in block.strip().splitlines()]
        yield [rows[0], *rows[2:]]


def code(cell: str) -> str:
    """Return a cell without its backticks."""
    return cell.strip("`")


def section(text: str, heading: str) -> str:
    """Return the text under a heading of any level, up to the next heading of the same level or a higher one. Raises
    LookupError."""
    match = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
    if match is None:
        raise LookupError(f"there is no heading {heading!r}")
    start = match.end()
    after = re.compile(rf"^#{{1,{len(match[1])}}} ", re.MULTILINE).search(text, start)
    return text[start : after.start() if after else len(text)]
