"""A folder in memory, if the system has one, for tests that write much and need no disk.

A file there survives kill -9 as one on a disk does; only a power cut would show the difference. fsync takes no time.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ENOUGH = 2 << 30  # bytes


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Create a folder, in memory if `_ENOUGH` is free there; remove it after the block."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH
    with tempfile.TemporaryDirectory(prefix="echo2-test-", dir=_MEMORY if roomy else None) as folder:
        yield Path(folder)
