"""Measure the memory that this process may still take on the processor's side.

A container, or a unit of systemd, often has less than the machine: its limit is that of a control group, of version 1
or 2. Beyond it the kernel kills the process without a word, where PyTorch would raise out-of-memory. The limits of all
groups above count as well. Files that the kernel caches for the group count as free where they can be dropped at once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

_MOUNT: Final = "sys/fs/cgroup"
_VERSION_2: Final = ("memory.max", "memory.current", "inactive_file")
_VERSION_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory(files: Path = Path("/")) -> int:
    """Return the bytes that this process may still take. `files`: files under which /proc and /sys lie."""
    return max(0, min([int(psutil.virtual_memory().available), *_rooms(files)]))


def _rooms(files: Path) -> Iterator[int]:
    """Yield how many bytes each control group of this process has left."""
    try:
        rows = (files / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for row in rows:
        _, controllers, path = [*row.split(":", 2), "", ""][:3]
        if controllers == "":
            top, names = files / _MOUNT, _VERSION_2
        elif "memory" in controllers.split(","):
            top, names = files / _MOUNT / "memory", _VERSION_1
        else:
            continue
        below = Path(path.lstrip("/"))
        for group in (top / below, *(top / parent for parent in below.parents)):
            room = _room(group, *names)
            if room is not None:
                yield room


def _room(group: Path, limit: str, used: str, cached: str) -> int | None:
    """Return how many bytes a control group has left; None: it has no limit, or is not visible here."""
    try:
        most, taken = (group / limit).read_text(), (group / used).read_text()
        stat = dict(row.split(" ", 1) for row in (group / "memory.stat").read_text().splitlines())
        return int(most) - int(taken) + int(stat.get(cached, 0))
    except (OSError, ValueError):
        return None
