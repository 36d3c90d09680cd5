"""The memory that this process uses by itself: a child without a limit of its address space ends before the machine has
none left.

On Linux mapped files do not count: the system may drop their pages. Elsewhere they do. A process measures itself, since
others may not see a private one (runtime/own_memory.py): some systems hide it from /proc.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import psutil

MOST_SHARE: Final = 0.9
"""Most share of the machine's memory that a process may use."""
POLL_SECONDS: Final = 5.0
"""Seconds between two looks."""
_OWN_MEMORY_FIELD: Final = "RssAnon:"


def own_memory() -> int:
    """Return the bytes of memory that this process uses."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(one for one in lines if one.startswith(_OWN_MEMORY_FIELD)).split()[1]) << 10
    return int(psutil.Process().memory_info().rss)


def excess(share: float) -> str:
    """Return a sentence if this process uses more than `share` of the machine's memory; empty: it does not."""
    most = round(share * psutil.virtual_memory().total)
    now = own_memory()
    return "" if now <= most else f"it used {now / 1e9:.1f} GB of memory, and may use {most / 1e9:.1f} GB"


@cache
def watch() -> None:
    """Look at this process's memory from now on, from a thread; end the process when it uses too much."""
    threading.Thread(target=_look, name="memory", daemon=True).start()


def _look() -> None:
    while not (beyond := excess(MOST_SHARE)):
        time.sleep(POLL_SECONDS)
    print(beyond, file=sys.stderr, flush=True)
    os._exit(1)
