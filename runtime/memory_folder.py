"""A folder in the machine's memory, for files that processes of one user map together and that no disk sees.

Rules
1. It lies in /dev/shm, which Linux has, and other systems do not. Its name follows from the path of the folder on disk
   that it belongs to, so that each process finds it.
2. Only its user may look into it. One that another user has made under this name is refused.
3. It outlives the processes that use it, but no restart of the machine. Its owner removes it. One whose folder on disk
   is gone, as a killed process may leave it, is removed when the next one is made.
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


def memory_folder(folder: Path) -> Path:
    """Return the path of the folder in memory that belongs to `folder` (rule 1)."""
    name = blake2b(os.fsencode(folder.resolve()), digest_size=12).hexdigest()
    return MEMORY_ROOT / f"echo2-{os.getuid()}-{name}"


def fits_in_memory(folder: Path, nbytes: int) -> bool:
    """Tell whether the folder in memory that belongs to `folder` may be made, and take `nbytes` bytes."""
    try:
        if SHARE_OF_FREE * nbytes > available_memory() or 2 * nbytes > shutil.disk_usage(MEMORY_ROOT).free:
            return False
        make_memory_folder(folder)
    except OSError:
        return False
    return True


def make_memory_folder(folder: Path) -> Path:
    """Return the folder in memory that belongs to `folder`, made where it is missing. Raises `PermissionError` (rule
    2), `FileNotFoundError` (rule 1)."""
    place = memory_folder(folder)
    if is_private(place):
        return place
    _remove_orphans()
    place.mkdir(mode=0o700, exist_ok=True)
    if not is_private(place):
        raise PermissionError(f"{place} belongs to another user of this machine: remove it")
    (place / PATH_FILE).write_bytes(os.fsencode(folder.resolve()))
    return place


def _remove_orphans() -> None:
    """Remove this user's folders in memory whose folder on disk is gone (rule 3)."""
    for place in MEMORY_ROOT.glob(f"echo2-{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            if is_private(place) and not Path(os.fsdecode((place / PATH_FILE).read_bytes())).exists():
                shutil.rmtree(place, ignore_errors=True)


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
    """Remove the folder in memory that belongs to `folder`, if there is one."""
    shutil.rmtree(memory_folder(folder), ignore_errors=True)
