"""docs/architecture.md and docs/reference/rules.md against the code.

1. The page is short, and its arrows are the import law of the packages.
2. A step of a life names one module.
3. Each change is reached by its word: `git grep -i` finds the word in the first module, which names the second one.
4. A rule number, and a name, behind a module in docs/reference/rules.md stand in that module.
"""

import itertools
import re
from typing import NamedTuple

import pytest

from tests.support.documents import FENCE, SPAN, section, tables
from tests.support.import_graph import MAY_IMPORT
from tests.support.paths import ROOT

MOST_WORDS = 2_500
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LIVES = ("A group, from a lease to a payment", "A version, from a step to an engine")
CHANGES = {"a new kind of lease", "a refusal code", "a metric on the page", "a ledger entry", "an engine option"}


class Change(NamedTuple):
    """A row of the table of changes. `name`: in the module `second`."""

    change: str
    word: str
    first: str
    second: str
    name: str


def changes() -> list[Change]:
    """Return the rows under "Where to change things"."""
    ((_, *rows),) = tables(section(PAGE, "Where to change things"))
    spans = [SPAN.findall(" ".join(row)) for row in rows]
    return [Change(row[0], found[0], found[1], found[-2], found[-1]) for row, found in zip(rows, spans, strict=True)]


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= MOST_WORDS


def test_the_arrows_of_the_page_are_the_import_law() -> None:
    fence = FENCE.search(section(PAGE, "The parts"))
    assert fence is not None
    drawn: dict[str, set[str]] = {name: {"runtime"} - {name} for name in MAY_IMPORT}
    for arrow in re.findall(r"^ +(.+) --> (.+)$", fence[3], re.MULTILINE):
        importers, imported = (side.split(" & ") for side in arrow)
        for importer in importers:
            drawn[importer] |= set(imported)
    assert drawn == MAY_IMPORT


@pytest.mark.parametrize("heading", LIVES)
def test_a_step_of_a_life_names_one_module(heading: str) -> None:
    steps = re.findall(r"^(\d+)\. ((?:.+\n)(?: {3,}.+\n)*)", section(PAGE, heading), re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) >= 10
    for number, text in steps:
        modules = [span for span in SPAN.findall(text) if span.endswith(".py")]
        assert len(modules) == 1, f"step {number} names {modules}"
        assert (ROOT / modules[0]).is_file(), modules[0]
        assert text.rstrip().endswith(f"`{modules[0]}`."), f"step {number} does not end with its module"


def test_the_changes_are_those_that_a_newcomer_was_asked_for() -> None:
    assert {row.change for row in changes()} == CHANGES


@pytest.mark.parametrize("row", changes(), ids=lambda row: row.change)
def test_a_change_is_reached_by_its_word_in_two_steps(row: Change) -> None:
    first, second = ((ROOT / path).read_text() for path in (row.first, row.second))
    assert any(row.word in text_line.lower() for text_line in first.splitlines()), f"{row.first} lacks {row.word!r}"
    assert row.second in first, f"{row.first} does not name {row.second}"
    assert re.search(rf"^ *(?:async def|def|class)? *{row.name}\b", second, re.MULTILINE), row.name


def test_each_rule_number_and_name_on_the_page_of_rules_is_in_its_module() -> None:
    wrong: list[str] = []
    rows = itertools.chain.from_iterable(
        table[1:] for table in tables((ROOT / "docs" / "reference" / "rules.md").read_text())
    )
    for rule, place in rows:
        folder, module = "", ""
        for span, numbers in re.findall(r"`([^`]+)`((?:, rules? [\d, and]*\d)?)", place):
            if span.endswith(".py"):
                folder = span.rpartition("/")[0] or folder
                module = f"{folder}/{span.rpartition('/')[2]}"
            if not module or not (ROOT / module).is_file():
                continue  # a folder, or a file that is no module: test_docs.py looks for it
            text = (ROOT / module).read_text()
            names = [] if span.endswith(".py") or not re.fullmatch(r"[\w.]+", span) else [span.rpartition(".")[2]]
            wanted = [rf"^ *{number}\. " for number in re.findall(r"\d+", numbers)]
            wanted += [rf"\b{name}\b" for name in names]
            wrong += [f"{rule}: {module}: {one}" for one in wanted if not re.search(one, text, re.MULTILINE)]
    assert wrong == []
