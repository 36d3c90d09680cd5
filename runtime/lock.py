"""One process per file or folder: an advisory lock (flock).

1. The kernel releases a lock when its holder dies, however it dies. A lock file that is left behind locks nothing.
2. No call waits: a lock that another process holds is refused at once.
3. A lock file may name its holder by process id, for the message to a person. The lock itself does not depend on it.
"""

import fcntl
import os
from pathlib import Path
from typing import Final, Self

from echo2.runtime.files import room

OF_HOME: Final = "lock"
"""Name of the file in a home that each of our daemons holds locked while it runs."""
_LONGEST_ID: Final = 32
"""Bytes read of a holder's id."""


class AlreadyLocked(Exception):
    """Another process holds the lock. `holder`: its process id as text, empty where the file does not name it."""

    def __init__(self, path: Path, holder: str = "") -> None:
        super().__init__(f"{path} is locked by process {holder or '?'}")
        self.holder = holder


class Lock:
    """A lock that this process holds until `release`, or to the end of a `with` block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Release the lock. A second call changes nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_file(path: Path, *, name_holder: bool = False) -> Lock:
    """Lock a file, which is created (mode 0600) where it is missing. `name_holder`: write this process's id into it.

    Raises `AlreadyLocked`, `DiskFull`, OSError where the file cannot be written.
    """
    with room(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(path, descriptor)
            if name_holder:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
    return Lock(descriptor)


def lock_folder(path: Path) -> Lock:
    """Lock a folder that exists. Raises `AlreadyLocked`, OSError where there is none or it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return Lock(descriptor)


def is_locked(path: Path) -> bool:
    """Tell whether a process holds the lock of a file; False where there is no file. The file stays as it is, but who
    locks it at this very moment is refused. Raises OSError where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = "" if path.is_dir() else os.pread(descriptor, _LONGEST_ID, 0).decode(errors="replace").strip()
        raise AlreadyLocked(path, holder) from error
