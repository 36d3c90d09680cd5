"""Write files that are either whole or absent, even after a power failure at any moment.

1. Bytes go to a hidden file beside the target. The hidden file is fsynced and renamed over the target; then the folder
   is fsynced.
2. A failure removes the hidden file. After kill -9 a hidden file may remain; its name is fixed, so the next attempt
   replaces it, also where it is a link or a pipe of another user: nothing is written through what is there.
3. A write that finds no room raises `DiskFull`, and the target is as it was.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from echo2.runtime.errors import DiskFull

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def room(path: Path) -> Iterator[None]:
    """Translate the errors that mean "no room" into `DiskFull` naming `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"no room to write {path} ({error.strerror}): free space there") from error
        raise


def hidden_path(path: Path) -> Path:
    """Return the path of the hidden file that holds the bytes of `path` while it is being written."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def writing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that becomes `path` when the block ends without an error. `mode`: permissions, less the user's mask,
    from its first byte on. Raises `DiskFull`."""
    temporary = hidden_path(path)
    try:
        temporary.unlink(missing_ok=True)
        with room(path), open(temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        move(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def move(source: Path, target: Path) -> None:
    """Rename a file that is already fsynced, durably. Both lie on one filesystem."""
    with room(target), syncing(target.parent):
        source.replace(target)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target`, which does not exist, the same file as `source`, durably; a copy of it on another filesystem, or
    where links are refused. Raises `DiskFull`."""
    try:
        target.hardlink_to(source)
        sync_folder(target.parent)
    except OSError:
        with source.open("rb") as original, writing(target) as file:
            shutil.copyfileobj(original, file, 8 << 20)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    with room(path), path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def syncing(folder: Path) -> Iterator[None]:
    """Make the names in a folder durable when the block ends without an error. The folder is opened first: a process
    without a free descriptor changes no name in it. Some network disks sync no folder: its server decides."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
    finally:
        os.close(descriptor)


def remove_leftover(path: Path) -> None:
    """Remove a file that belongs to nothing. Under NFS a file that was removed while a process has it open stays, with
    a name that begins with .nfs, until that closes it: this one is left to the system."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    with syncing(folder):
        pass
