"""Folders of environments' processes: whatever is in them, they are bounded, and deleted whole."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.environments.work_folders import (
    MOST_FOLDER_FILES,
    MOST_FOLDER_LEVELS,
    delete_folder,
    is_full,
    sweep,
)
from tests.support.quick_disk import quick_folder

ENDED = (1 << 22) + 1
"""Above the highest process id that Linux gives."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with quick_folder() as place:
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        made = place / f"echo2-environment-{ENDED}-x"
        made.mkdir()
        yield made


def nest(folder: Path, levels: int, name: str = "below", content: bytes = b"x") -> None:
    """Make folders in one another, each by its last name alone, with a file in the deepest."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(file, content)
    os.close(file)
    os.close(here)


def test_a_folder_within_its_bounds_is_not_full(folder: Path) -> None:
    nest(folder, MOST_FOLDER_LEVELS - 2)
    (folder / "link").symlink_to(folder.parent)
    assert not is_full(folder)


def test_a_folder_with_more_files_than_it_may_have_is_full(folder: Path) -> None:
    for number in range(MOST_FOLDER_FILES + 1):
        (folder / f"{number}").touch()
    assert is_full(folder)


@pytest.mark.parametrize(("levels", "name"), [(MOST_FOLDER_LEVELS, "b"), (3_000, "b"), (20, "b" * 255)])
def test_folders_that_are_nested_too_deep_to_be_counted_make_it_full(folder: Path, levels: int, name: str) -> None:
    nest(folder, levels, name)
    assert is_full(folder)
    delete_folder(folder)


@pytest.mark.parametrize("levels", [1, 1_100, 3_000])
@pytest.mark.slow_but("1", "1100")
def test_the_sweep_deletes_folders_however_deep_they_are_nested(folder: Path, levels: int) -> None:
    nest(folder, levels)
    nest(folder, levels, "other")
    sweep()
    assert list(folder.parent.iterdir()) == []


def test_a_folder_is_deleted_whose_folders_nobody_may_read(folder: Path) -> None:
    nest(folder, 3)
    for path in (folder / "below" / "below", folder / "below", folder):
        path.chmod(0)
    delete_folder(folder)
    assert not folder.exists()


def test_what_a_link_leads_to_stays(folder: Path) -> None:
    kept = folder.parent / "kept"
    kept.mkdir()
    nest(kept, 2)
    nest(folder, 2)
    (folder / "below" / "link").symlink_to(kept)
    (folder.parent / f"echo2-environment-{ENDED}-y").symlink_to(kept)
    sweep()
    assert (kept / "below" / "below" / "file").read_bytes() == b"x"
    assert not folder.exists()
