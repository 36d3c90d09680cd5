"""The tables of data layouts in docs/reference/math-data.md are what reading such data gives."""

import pytest

from tests.support import data_layouts
from tests.support.data_layouts import FIELD_ROWS, FOLDERS, FieldRow


@pytest.mark.parametrize("files", FOLDERS, ids=lambda files: files[0])
def test_a_folders_row_says_what_reading_it_gives(files: list[str]) -> None:
    if data_layouts.needs_pyarrow(files):
        pytest.importorskip("pyarrow", reason="needs the extra math")
    assert data_layouts.folder_row(files) in data_layouts.shown_rows(), "python -m tests.support.data_layouts"


@pytest.mark.parametrize("kind", FIELD_ROWS, ids=lambda kind: kind.source)
def test_a_kind_of_row_says_what_reading_it_gives(kind: FieldRow) -> None:
    assert data_layouts.field_row(kind) in data_layouts.shown_rows(), "python -m tests.support.data_layouts"


def test_the_tables_have_a_row_of_each_layout_and_no_other() -> None:
    heads = ("|---", "| Files", "| Rows")
    rows = [row for row in data_layouts.shown_rows() if row.startswith("|") and not row.startswith(heads)]
    assert len(rows) == len(FOLDERS) + len(FIELD_ROWS)
