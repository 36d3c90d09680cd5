"""A folder in the machine's memory: by the folder it belongs to, for one user, within what is free."""

from pathlib import Path

import pytest

from echo2.runtime import memory_folder as module
from echo2.runtime.memory_folder import (
    fits_in_memory,
    is_private,
    make_memory_folder,
    memory_folder,
    memory_lock,
    remove_memory_folder,
)


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a folder of this test stand for the machine's memory."""
    root = tmp_path / "memory"
    root.mkdir()
    monkeypatch.setattr(module, "MEMORY_ROOT", root)
    return root


def test_each_folder_has_its_own_and_finds_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "one")
    (tmp_path / "one").mkdir()
    place = make_memory_folder(tmp_path / "one")
    assert place == make_memory_folder(tmp_path / "link") == memory_folder(tmp_path / "one")
    assert place != make_memory_folder(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    assert memory_folder(Path("one")) == place
    with memory_lock(place):
        assert is_private(place)
    remove_memory_folder(tmp_path / "one")
    assert not place.exists()
    remove_memory_folder(tmp_path / "one")


def test_what_a_killed_process_left_goes_with_its_folder_on_disk(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        make_memory_folder(tmp_path / name)
    (tmp_path / "one").rmdir()
    make_memory_folder(tmp_path / "two")
    assert memory_folder(tmp_path / "one").exists(), "nothing is made"
    make_memory_folder(tmp_path / "three")
    assert not memory_folder(tmp_path / "one").exists()
    assert memory_folder(tmp_path / "two").exists()


def test_what_others_may_have_made_is_refused(tmp_path: Path, memory: Path) -> None:
    place = memory_folder(tmp_path / "one")
    (memory / "theirs").mkdir(mode=0o700)
    place.symlink_to(memory / "theirs")
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_memory_folder(tmp_path / "one")
    assert not fits_in_memory(tmp_path / "one", 1)
    place.unlink()
    place.mkdir()
    place.chmod(0o750)
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_memory_folder(tmp_path / "one")


def test_it_takes_a_third_of_the_free_memory_where_there_is_one(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 3000)
    assert fits_in_memory(tmp_path / "one", 1000)
    assert memory_folder(tmp_path / "one").is_dir()
    assert not fits_in_memory(tmp_path / "two", 1001)
    assert not memory_folder(tmp_path / "two").exists()
    monkeypatch.setattr(module, "MEMORY_ROOT", memory / "missing")
    assert not fits_in_memory(tmp_path / "one", 1)
