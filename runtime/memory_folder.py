"""A folder in the machine's memory, for files that processes of one user map together and that no disk sees.

Rules
1. It lies in /dev/shm, which Linux has, and other systems do not. Its name follows from the path of the folder on disk
   that it belongs to, so that each process finds it.
2. Only its user may look into it. One that another user has made under this name is refused.
3. It outlives the processes that use it, but no restart of the machine. Its owner removes it. One whose folder on disk
   is gone, as a killed process may leave it, is removed before free memory is measured for another.
4. One process, with its children, has a folder: the one that claimed it. Containers that share /dev/shm may have
   folders on disk at the same path, and to each the other's seems to be gone. So none that another process has is used,
   written to or removed. A claim ends with its process, however that ends.
"""

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from echo2.runtime.host_memory import available_memory

MEMORY_ROOT: Final = Path("/dev/shm")
SHARE_OF_FREE: Final = 3
"""A folder may take one part in so many of the memory that is free."""
PATH_FILE: Final = "path"
"""Name of the file with the path of the folder on disk."""
CLAIM_FILE: Final = "claim"
"""Name of the file that the process locks which has the folder."""


def memory_folder(folder: Path) -> Path:
    """Return the path of the folder in memory that belongs to `folder` (rule 1)."""
    name = blake2b(os.fsencode(folder.resolve()), digest_size=12).hexdigest()
    return MEMORY_ROOT / f"echo2-{os.getuid()}-{name}"


class MemoryClaim:
    """The right of this process to a folder in memory (rule 4). `descriptor`: lock of its file."""

    def __init__(self, place: Path, descriptor: int) -> None:
        self._place, self._descriptor = place, descriptor

    def release(self) -> None:
        """Remove the folder, and give up the right to it."""
        shutil.rmtree(self._place, ignore_errors=True)
        os.close(self._descriptor)


def claim_memory(folder: Path) -> MemoryClaim | None:
    """Claim the folder in memory that belongs to `folder`, made where it is missing; None: another process has it.
    Raises as `make_memory_folder`, `OSError` where /dev/shm is full."""
    return _claim(make_memory_folder(folder))


def fits_in_memory(nbytes: int) -> bool:
    """Tell whether a folder in memory may take `nbytes` bytes."""
    _remove_orphans()
    try:
        return SHARE_OF_FREE * nbytes <= available_memory() and 2 * nbytes <= shutil.disk_usage(MEMORY_ROOT).free
    except OSError:
        return False


def make_memory_folder(folder: Path) -> Path:
    """Return the folder in memory that belongs to `folder`, made where it is missing. Raises `PermissionError` (rule
    2), `FileNotFoundError` (rule 1)."""
    place = memory_folder(folder)
    if not is_private(place):
        _remove_orphans()
        place.mkdir(mode=0o700, exist_ok=True)
        if not is_private(place):
            raise PermissionError(f"{place} belongs to another user of this machine: remove it")
    file = place / PATH_FILE
    if not file.exists() or not file.stat().st_size:  # a kill, or a full memory, may have come before it
        file.write_bytes(os.fsencode(folder.resolve()))
    return place


def _claim(place: Path) -> MemoryClaim | None:
    file = place / CLAIM_FILE
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), file.stat()):
            return MemoryClaim(place, descriptor)
    except (BlockingIOError, FileNotFoundError):  # another process has it, or has removed it meanwhile
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _remove_orphans() -> None:
    """Remove this user's folders in memory whose folder on disk is gone (rule 3)."""
    for place in MEMORY_ROOT.glob(f"echo2-{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            if is_private(place) and not Path(os.fsdecode((place / PATH_FILE).read_bytes())).exists():
                _remove(place)


def _remove(place: Path) -> None:
    """Remove a folder in memory, unless another process has it (rule 4)."""
    if is_private(place) and (claim := _claim(place)) is not None:
        claim.release()


def is_private(place: Path) -> bool:
    """Tell whether a folder in memory is there, and only its user may look into it (rule 2)."""
    try:
        status = place.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


@contextmanager
def memory_lock(place: Path) -> Iterator[None]:
    """Let one process at a time fill a folder in memory; the others wait."""
    with (place / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_memory_folder(folder: Path) -> None:
    """Remove the folder in memory that belongs to `folder`, if there is one that no other process has."""
    with contextlib.suppress(OSError):
        _remove(memory_folder(folder))
