"""Measure the memory that a process uses by itself, for the watch on children without a limit of their address space.

On Linux mapped files do not count: the system may drop their pages. Elsewhere they do.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_OWN_MEMORY_FIELD: Final = "RssAnon:"


def used_by(pid: int) -> int:
    """Return the bytes of memory that a process uses; 0 if it has ended."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(one for one in lines if one.startswith(_OWN_MEMORY_FIELD)).split()[1]) << 10
    with suppress(psutil.NoSuchProcess):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def excess(pid: int, share: float) -> str:
    """Return a sentence if a process uses more than `share` of the machine's memory; empty: it does not."""
    most = round(share * psutil.virtual_memory().total)
    used = used_by(pid)
    return "" if used <= most else f"it uses {used / 1e9:.1f} GB of memory, and may use {most / 1e9:.1f} GB"
