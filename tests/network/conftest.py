"""Whole networks write much: their folders lie in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.quickdisk import quick_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In place of pytest's own."""
    with quick_folder() as folder:
        yield folder
