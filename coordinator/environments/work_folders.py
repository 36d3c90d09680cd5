"""The folders in which environments' processes work: their bounds, and their deletion, whatever is in them.

Rules
1. A folder holds at most `MOST_FOLDER_BYTES` bytes on the disk and `MOST_FOLDER_FILES` files and folders, at most
   `MOST_FOLDER_LEVELS` levels deep. One in which something cannot be counted, as its path is too long or nobody may
   read it, counts as full.
2. A folder is deleted with all that is in it: folders nested deeper than a path can name, or without rights. Each one
   below is moved to the top first, so no path is long and no call nests. Deletion raises nothing.
3. The name of a folder has the process id of its coordinator. So the next coordinator of the same user deletes those of
   one that was killed (`sweep`). A link of that name, which anybody could make, is left alone. Folders of other
   commands that begin with a name of their own are made and deleted so too.
"""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

FOLDERS = "echo2-environment-"
MOST_FOLDER_BYTES: Final = 512 << 20
MOST_FOLDER_FILES: Final = 10_000
MOST_FOLDER_LEVELS: Final = 64
BOUNDS: Final = (
    f"its folder has more than {MOST_FOLDER_BYTES} bytes, {MOST_FOLDER_FILES} files or {MOST_FOLDER_LEVELS} levels, or"
    " unreadable folders"
)
"""Why a process whose folder is full is ended."""
_UNCOUNTED_ERRORS = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)


def make_folder(name: str = FOLDERS) -> Path:
    """Make a folder for one process."""
    return Path(tempfile.mkdtemp(prefix=f"{name}{os.getpid()}-"))


def is_full(folder: Path) -> bool:
    """Tell whether a folder is beyond its bounds (rule 1). Links are not followed."""
    files, size, below = 0, 0, [(str(folder), 1)]
    while below:
        path, level = below.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    files += 1
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        size += 512 * entry.stat(follow_symlinks=False).st_blocks
                        if entry.is_dir(follow_symlinks=False):
                            below.append((entry.path, level + 1))
                    if files > MOST_FOLDER_FILES or size > MOST_FOLDER_BYTES or level > MOST_FOLDER_LEVELS:
                        return True
        except OSError as error:
            if error.errno in _UNCOUNTED_ERRORS:
                return True
    return False


def delete_folder(folder: Path) -> None:
    """Delete a folder (rule 2)."""
    below = [folder]
    while below:
        path = below.pop()
        with contextlib.suppress(OSError):
            _unlock(path)
            for entry in list(os.scandir(path)):
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        below.append(_moved_to_the_top(Path(entry.path), folder))
                    else:
                        os.unlink(entry.path)
        if path != folder:
            with contextlib.suppress(OSError):
                path.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _unlock(path: Path) -> None:
    """Give its owner all rights to a folder."""
    if path.lstat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
        path.chmod(stat.S_IRWXU)


def _moved_to_the_top(path: Path, folder: Path) -> Path:
    """Move a folder below `folder` directly into it; return its new path."""
    if path.parent == folder:
        return path
    _unlock(path)
    return path.rename(folder / f"moved-{os.urandom(12).hex()}")


def sweep(name: str = FOLDERS) -> None:
    """Delete the folders of coordinators that no longer run (rule 3)."""
    for folder in Path(tempfile.gettempdir()).glob(f"{name}*-*"):
        owner = folder.name.removeprefix(name).partition("-")[0]
        if owner.isdigit() and _is_ours(folder) and not _runs(int(owner)):
            delete_folder(folder)


def _is_ours(folder: Path) -> bool:
    try:
        told = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(told.st_mode) and told.st_uid == os.geteuid()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
