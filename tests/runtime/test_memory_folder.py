"""A folder in the machine's memory: by the folder it belongs to, for one user, within what is free."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echo2.runtime import memory_folder as module
from echo2.runtime.memory_folder import (
    claim_memory,
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


def test_what_a_killed_process_left_does_not_count_as_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    left = make_memory_folder(tmp_path / "one")
    monkeypatch.setattr(module, "available_memory", lambda: 0 if left.exists() else 3000)
    assert not fits_in_memory(1000)
    (tmp_path / "one").rmdir()
    assert fits_in_memory(1000)


def test_a_folder_whose_making_was_killed_is_found_again_and_goes_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    memory_folder(tmp_path / "one").mkdir(mode=0o700)
    place = make_memory_folder(tmp_path / "one")
    (tmp_path / "one").rmdir()
    make_memory_folder(tmp_path / "two")
    assert not place.exists()


def test_what_others_may_have_made_is_refused(tmp_path: Path, memory: Path) -> None:
    place = memory_folder(tmp_path / "one")
    (memory / "theirs").mkdir(mode=0o700)
    place.symlink_to(memory / "theirs")
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_memory_folder(tmp_path / "one")
    with pytest.raises(PermissionError, match="belongs to another user"):
        claim_memory(tmp_path / "one")
    remove_memory_folder(tmp_path / "one")
    assert (memory / "theirs").is_dir()
    place.unlink()
    place.mkdir()
    place.chmod(0o750)
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_memory_folder(tmp_path / "one")


def test_it_takes_a_third_of_the_free_memory_where_there_is_one(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 3000)
    assert fits_in_memory(1000)
    assert not fits_in_memory(1001)
    monkeypatch.setattr(module, "MEMORY_ROOT", memory / "missing")
    assert not fits_in_memory(1)


ELSEWHERE = """
import sys, time
from pathlib import Path
from echo2.runtime import memory_folder
memory_folder.MEMORY_ROOT = Path(sys.argv[1])
print(memory_folder.claim_memory(Path(sys.argv[2])) is not None, flush=True)
sys.stdin.read()
"""


@contextmanager
def in_another_process(memory: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process claim the folder in memory of `folder`, as one of another container may."""
    argv = [sys.executable, "-c", ELSEWHERE, str(memory), str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_another_process_has_is_neither_claimed_nor_removed_until_it_ends(tmp_path: Path, memory: Path) -> None:
    """Two containers shared /dev/shm: each removed the weights of the other, or wrote its own in their place."""
    folder = tmp_path / "one"
    with in_another_process(memory, folder):
        (memory_folder(folder) / "weights").write_text("of the other")
        assert claim_memory(folder) is None
        remove_memory_folder(folder)
        assert fits_in_memory(1), "no folder of this path is here: an orphan, for all that can be seen"
        assert (memory_folder(folder) / "weights").read_text() == "of the other"
    claim = claim_memory(folder)
    assert claim is not None, "the right of a process that was killed has ended"
    claim.release()
    assert not memory_folder(folder).exists()


def test_a_folder_that_is_removed_while_it_is_claimed_is_not_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()

    def removed(descriptor: int, operation: int) -> None:
        shutil.rmtree(memory_folder(tmp_path / "one"))

    monkeypatch.setattr(module.fcntl, "flock", removed)
    assert claim_memory(tmp_path / "one") is None
