"""The generated pages of docs/reference are those that the code makes today."""

import re

import pytest

from tests.docs import reference
from tests.docs.reference import FOLDER, PAGES, glossed
from tests.support.command_tree import PROGRAMS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_fresh(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name]().rstrip("\n") + "\n", "run python -m tests.docs.reference"


def test_the_pages_have_every_command_metric_and_path() -> None:
    commands = (FOLDER / "commands.md").read_text()
    assert {f"## {program}" for program in PROGRAMS} <= set(commands.splitlines())
    assert len(re.findall(r"^### echo2-", commands, re.MULTILINE)) > 60
    assert all(meaning for _, _, meaning in reference.metric_rows().values())


def test_a_description_is_split_into_its_glosses() -> None:
    about, glosses = glossed("One node. `weight`: accepted work. `a`, `b`: two of a kind;\n    None: unknown.")
    assert about == "One node. "
    assert glosses == {
        "weight": "accepted work",
        "a": "two of a kind; None: unknown",
        "b": "two of a kind; None: unknown",
    }
