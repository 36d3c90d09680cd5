"""The annotated tree of CONTRIBUTING.md against the folders: one line per room, one comment per line."""

import re
from typing import NamedTuple

import pytest

from tests.support.documents import FENCE, section
from tests.support.paths import PACKAGES, PLAYED, ROOT

BESIDE = ("tests", "benchmarks", "docs", "plugins")


class Row(NamedTuple):
    """One line of the tree. `folder`: from the root."""

    folder: str
    comment: str


def tree() -> list[Row]:
    """Return the lines of the tree, each folder below the less indented one above it."""
    block = FENCE.search(section((ROOT / "CONTRIBUTING.md").read_text(), "The rooms"))
    assert block is not None
    rows: list[Row] = []
    above: list[str] = []
    for text_line in block[3].splitlines():
        match = re.fullmatch(r"( *)([\w/]+)/ +(\S.*)", text_line)
        assert match is not None, f"a line of the tree is no folder with a comment: {text_line!r}"
        depth = len(match[1]) // 2
        above = [*above[:depth], match[2]]
        rows.append(Row("/".join(above), match[3]))
    return rows


def rooms() -> set[str]:
    """Return the packages, the rooms that commands play, and every folder below them that holds modules."""
    folders = (*PACKAGES, *PLAYED)
    return {str(module.parent.relative_to(ROOT)) for folder in folders for module in (ROOT / folder).rglob("*.py")}


def test_the_tree_names_every_room_once() -> None:
    named = [row.folder for row in tree()]
    assert len(set(named)) == len(named)
    assert set(named) == rooms() | set(BESIDE)


@pytest.mark.parametrize("row", tree(), ids=lambda row: row.folder)
def test_a_comment_is_one_line_and_names_nothing_that_is_not_there(row: Row) -> None:
    assert len(row.comment) <= 110
    for name in re.findall(r"[\w/]+(?:\.py\b|/(?=\W))", row.comment):
        assert (ROOT / row.folder / name).exists(), f"{row.folder} has no {name}"
