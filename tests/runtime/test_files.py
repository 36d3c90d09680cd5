"""runtime/files.py: a file is whole or absent, and a write without room says so."""

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from echo2.runtime import files
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.files import hidden_path, move, room, syncing, writing


def test_a_file_appears_only_when_its_block_has_ended_well(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with writing(path) as file:
        file.write(b"new")
        assert not path.exists()
        assert hidden_path(path).exists()
    assert path.read_bytes() == b"new"
    assert not hidden_path(path).exists()


def test_a_failure_leaves_what_was_there_and_no_hidden_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with writing(path) as file:
            file.write(b"half")
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"old")]


def test_nothing_is_written_through_a_link_or_a_pipe_in_the_hidden_files_place(tmp_path: Path) -> None:
    """In a folder that others write to: the link of another user let this one's own file be overwritten."""
    path, precious = tmp_path / "a", tmp_path / "precious"
    precious.write_bytes(b"kept")
    hidden_path(path).symlink_to(precious)
    with writing(path) as file:
        file.write(b"new")
    assert (precious.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"kept", b"new", False)
    os.mkfifo(hidden_path(path))
    with writing(path) as file:
        file.write(b"newer")
    assert path.read_bytes() == b"newer"


@pytest.mark.parametrize("number", files.NO_ROOM)
def test_a_write_without_room_is_a_fault_of_this_machine_that_names_the_file(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskFull, match="free space there") as full, room(tmp_path / "a"):
        raise OSError(number, os.strerror(number))
    assert str(tmp_path / "a") in str(full.value)
    assert isinstance(full.value, LocalFault)


def test_any_other_error_of_the_system_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), room(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "no")


def test_without_a_free_descriptor_no_name_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").write_bytes(b"new")

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(files.os, "open", refuse)
    with pytest.raises(OSError, match="too many open files"):
        move(tmp_path / "b", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_the_names_in_a_folder_are_synced_once_after_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: order.append("sync"))
    with syncing(tmp_path):
        order.append("block")
    assert order == ["block", "sync"]


def test_a_file_that_nfs_keeps_for_who_has_it_open_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover, kept = tmp_path / "garbage", tmp_path / ".nfs000000000001"
    leftover.touch()
    kept.touch()
    files.remove_leftover(leftover)
    files.remove_leftover(leftover)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EBUSY if path == kept else errno.EACCES, "refused")

    monkeypatch.setattr(Path, "unlink", refuse)
    files.remove_leftover(kept)
    with pytest.raises(PermissionError):
        files.remove_leftover(leftover)
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize(("fault", "passes"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_disk_that_syncs_no_folder_takes_files_all_the_same(
    fault: int, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def of_a_folder(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(fault, os.strerror(fault))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", of_a_folder)
    outcome = contextlib.nullcontext() if passes else pytest.raises(OSError, match=os.strerror(fault))
    with outcome, files.writing(tmp_path / "file") as file:
        file.write(b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
