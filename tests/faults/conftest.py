"""One run folder, made once, that every test of faults copies. Runs lie in memory: many processes share the disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import make_template
from tests.support.quick_disk import quick_folder


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    with quick_folder() as folder:
        yield make_template(folder / "run")
