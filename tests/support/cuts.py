"""A folder as SIGKILL or a power cut would have left it, before each system call that changes its files.

A life is a generator: it works in a folder, and yields the state that the folder must durably hold. It runs once;
before each of its system calls, and each statement of SQLite, the folder is copied. Then the copies are put back, one
after the other, and the test opens each. It must find the state yielded last before the copy, or the one yielded next.

1. A kill leaves every byte that was written. Bytes that Python still buffers are lost.
2. A power cut loses the bytes that were not yet fsynced; names appear and vanish in the order of the calls, as on every
   file system with a journal. A yielded state must be durable under names that did not change after the last fsync.
3. SQLite is trusted: its files are copied, and never truncated.
"""

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from unittest import mock

State = TypeVar("State")

_CALLS = (
    "fsync", "ftruncate", "link", "mkdir", "pwrite", "remove", "rename", "replace", "rmdir", "symlink", "truncate",
    "unlink", "write",
)  # fmt: skip
"""Functions of `os`; pathlib and shutil call them as well."""
_SQLITE = (".sqlite", "-wal", "-shm")


class Cut(NamedTuple, Generic[State]):
    """One cut. `before`, `after`: the states that the life yielded around it. `where`: the call, for a message."""

    before: State
    after: State
    where: str


class _File(NamedTuple):
    """A file or folder. `data`: None for a folder. `inode`: its number, by which hard links are put back."""

    data: bytes | None
    mode: int
    inode: int


class _Copy(NamedTuple):
    """A copy of the folder. `files`: path below the folder -> file, a folder before its content."""

    files: dict[str, _File]
    where: str


def cuts(life: Iterator[State], folder: Path) -> Iterator[Cut[State]]:
    """Run `life`, then put back the content of `folder` after each cut; no process may have it open by then. The first
    yield of the life is the initial state of `folder`."""
    with _Watch(folder) as watch:
        before = next(life)
        lived: list[tuple[State, State, list[_Copy]]] = []
        watch.copies.clear()
        for after in life:
            watch.take("the end of the step")
            lived.append((before, after, watch.copies))
            watch.copies, before = [], after
            lived.append((after, after, [watch.lasting()]))
    seen: set[object] = set()
    for number, (before, after, copies) in enumerate(lived):
        for copy in copies:
            mark = (number, frozenset((path, file.data) for path, file in copy.files.items()))
            if mark not in seen:
                seen.add(mark)
                _put_back(copy, folder)
                yield Cut(before, after, f"step {number}: {copy.where}")


class _Watch:
    """A context in which `folder` is copied before each call of this process that changes files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._patches = ExitStack()
        self._connect = sqlite3.connect
        self._synced: dict[int, bytes] = {}
        self._mutex = threading.RLock()
        self._busy = False
        self._lasting: dict[str, _File] = {}
        """The folder as of the last fsync, without unsynced bytes."""
        self.copies: list[_Copy] = []

    def __enter__(self) -> "_Watch":
        for name in _CALLS:
            self._patches.enter_context(mock.patch.object(os, name, self._watched(name, getattr(os, name))))
        self._patches.enter_context(mock.patch.object(sqlite3, "connect", self._connected))
        self._synced = {file.inode: file.data for file in self._files().values() if file.data is not None}
        self._lasting = self._files()
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def take(self, where: str) -> None:
        """Record the contents that a kill and a power cut at this point would leave. `where`: the call."""
        with self._alone() as entered:
            if entered:
                files = self._files()
                self.copies.append(_Copy(files, f"killed before {where}"))
                self.copies.append(_Copy(self._without_unsynced(files), f"power cut before {where}"))

    def lasting(self) -> _Copy:
        """Return the least that remains after a power cut at this point."""
        files = {path: file for path, file in self._lasting.items() if not path.endswith(_SQLITE)}
        files |= {path: file for path, file in self._files().items() if path.endswith(_SQLITE)}
        return _Copy(files, "power cut behind the step")

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            with self._mutex:
                self.take(f"os.{name}({', '.join(map(str, arguments))})")
                result = call(*arguments, **named)
                self._note(arguments[0] if name == "fsync" else None)
                return result

        return watched

    def _connected(self, *arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = self._connect(*arguments, **named)
        connection.set_trace_callback(lambda statement: self.take(f"SQL {statement}"))
        return connection

    def _note(self, fsynced: int | None) -> None:
        with self._alone() as entered:
            if not entered:
                return
            files = self._files()
            inodes = {file.inode: file.data for file in files.values() if file.data is not None}
            # The inode number of a deleted file may be given to another file.
            self._synced = {inode: data for inode, data in self._synced.items() if inode in inodes}
            if fsynced is not None:
                inode = os.fstat(fsynced).st_ino
                self._synced |= {inode: inodes[inode]} if inode in inodes else {}
                self._lasting = self._without_unsynced(files)

    def _files(self) -> dict[str, _File]:
        while True:
            # A file that native code writes meanwhile, as safetensors does, may be renamed during the copy.
            with suppress(FileNotFoundError):
                return {str(path.relative_to(self._folder)): _read(path) for path in sorted(self._folder.rglob("*"))}

    def _without_unsynced(self, files: dict[str, _File]) -> dict[str, _File]:
        return {
            path: file._replace(data=self._synced.get(file.inode, b""))
            if file.data is not None and not path.endswith(_SQLITE)
            else file
            for path, file in files.items()
        }

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield whether the call comes from the test; False for a call of the copying itself."""
        with self._mutex:
            busy, self._busy = self._busy, True
            try:
                yield not busy
            finally:
                self._busy = busy


def _read(path: Path) -> _File:
    stat = path.stat()
    return _File(None if path.is_dir() else path.read_bytes(), stat.st_mode & 0o7777, stat.st_ino)


def _put_back(copy: _Copy, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    first: dict[int, Path] = {}
    for name, file in copy.files.items():
        path = folder / name
        if file.data is None:
            path.mkdir()
        elif file.inode in first:
            path.hardlink_to(first[file.inode])
        else:
            path.write_bytes(file.data)
            path.chmod(file.mode)
            first[file.inode] = path
