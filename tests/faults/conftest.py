"""One run folder, made once and copied by every test of faults. Runs lie in memory, because many processes share the
disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import make_template
from tests.support.quick_disk import quick_folder


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    with quick_folder() as folder:
        yield make_template(folder / "run")
