"""Removing files as a client of NFS does: one that this process has open stays in its folder, with another name.

Rules
1. The name begins with .nfs. It goes once the file is closed, and cannot be removed before that (EBUSY).
2. So a folder with such a file cannot be removed either (ENOTEMPTY).
3. A file that another is renamed over counts as removed.

/proc says what is open or mapped.
"""

import errno
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

from tests.support.open_files import open_files

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
_KEPT: Final = ".nfs"


@contextmanager
def nfs_disk(folder: Path) -> Iterator[None]:
    """Let `folder` lie on NFS within the block, for this process's own calls of `os`."""
    disk = _Disk(folder.resolve())
    with (
        mock.patch.object(os, "unlink", disk.unlink),
        mock.patch.object(os, "rmdir", disk.rmdir),
        mock.patch.object(os, "rename", disk.over(os.rename)),
        mock.patch.object(os, "replace", disk.over(os.replace)),
    ):
        yield
    disk.sweep(folder)


class _Disk:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._unlink, self._rmdir, self._rename = os.unlink, os.rmdir, os.rename
        self._numbers = itertools.count(1)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Remove a file, or give it another name (rule 1)."""
        if not self._keep(place := _place(path, dir_fd)):
            self._unlink(place)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Remove a folder in which no file is open (rule 2)."""
        self.sweep(place := _place(path, dir_fd))
        self._rmdir(place)

    def over(self, rename: Callable[..., None]) -> Callable[..., None]:
        """Return a renaming that removes the target as `unlink` does (rule 3)."""

        def renamed(source: Any, target: Any, **where: Any) -> None:
            place = _place(target, where.get("dst_dir_fd"))
            if place.is_file():
                self._keep(place)
            rename(source, target, **where)

        return renamed

    def sweep(self, folder: Path) -> None:
        """Remove kept files that are not open any more."""
        for path in folder.rglob(f"{_KEPT}*"):
            if str(path.resolve()) not in _open_paths():
                self._unlink(path)

    def _keep(self, place: Path) -> bool:
        """Give an open file another name; return whether it was open. Raises `OSError` (rule 1)."""
        if self._root not in place.parents or place.is_symlink() or str(place) not in _open_paths():
            return False
        if place.name.startswith(_KEPT):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(place))
        self._rename(place, place.with_name(f"{_KEPT}{next(self._numbers):024x}"))
        return True


def _place(path: Any, dir_fd: int | None) -> Path:
    folder = Path.cwd() if dir_fd is None else Path(os.readlink(f"/proc/self/fd/{dir_fd}"))
    name = folder / os.fspath(path)
    return name.parent.resolve() / name.name


def _open_paths() -> set[str]:
    """Return the paths that this process has open or mapped."""
    mapped = {text.split(maxsplit=5)[-1] for text in Path("/proc/self/maps").read_text().splitlines()}
    return mapped | set(map(str, open_files()))
