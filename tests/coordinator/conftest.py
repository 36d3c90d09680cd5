"""A world for each story, closed when it ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
