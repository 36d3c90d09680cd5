"""A world and a run folder per test; all worlds of a test are closed when it ends."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_world import OPEN_WORLDS, World
from tests.support.run_folders import make_run, write_model


@pytest.fixture(autouse=True)
def _close_worlds() -> Iterator[None]:
    """Close the worlds that a test has made, but for those that several tests share."""
    shared = set(OPEN_WORLDS)
    yield
    for opened in OPEN_WORLDS - shared:
        opened.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture(scope="session")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    return make_run(place / "run", write_model(place / "model")).folder.path


@pytest.fixture
def home(_made_once: Path, tmp_path: Path) -> Path:
    """Return a complete run folder of this test's own."""
    return shutil.copytree(_made_once, tmp_path / "run")
