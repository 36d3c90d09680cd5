"""The index of the decision records names each of them once, under a subject, with its title, day and status."""

import re

import pytest

from tests.docs.adr_index import PAGE, records, with_rows


def test_the_index_has_each_record_as_its_head_says() -> None:
    page = PAGE.read_text()
    assert with_rows(page) == page, "run python -m tests.docs.adr_index"
    assert len(re.findall(r"^\| \[\d+\]", page, re.MULTILINE)) == len(records())


def test_a_record_without_a_row_is_added_and_one_named_twice_is_refused() -> None:
    first = records()[1]
    assert first.row() in with_rows("# Decisions\n").splitlines()
    with pytest.raises(ValueError, match="ADR 1 twice"):
        with_rows("| 1 |\n| 1 |\n")
