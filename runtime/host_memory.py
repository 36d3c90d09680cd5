"""Measure the memory that this process may take on the processor's side: all of it, and what is left.

A container, or a unit of systemd, often has less than the machine: its limit is that of a control group, of version 1
or 2. Beyond it the kernel kills the process without a word, where PyTorch would raise out-of-memory. The limits of all
groups above count as well. Files that the kernel caches for the group count as free where they can be dropped at once.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_MOUNT: Final = "sys/fs/cgroup"
_Names = tuple[str, str, str]
_VERSION_2: Final[_Names] = ("memory.max", "memory.current", "inactive_file")
_VERSION_1: Final[_Names] = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_PEAK: Final = {_VERSION_2: "memory.peak", _VERSION_1: "memory.max_usage_in_bytes"}
_NO_LIMIT: Final = 1 << 60
GB: Final = 1_000_000_000


def available_memory(files: Path = Path("/")) -> int:
    """Return the bytes that this process may still take. `files`: files under which /proc and /sys lie."""
    rooms = (room for group, names in _groups(files) if (room := _room(group, *names)) is not None)
    return max(0, min([int(psutil.virtual_memory().available), *rooms]))


def memory_limit(files: Path = Path("/")) -> int:
    """Return the most bytes that this process may take in all: the machine's, or those of a control group."""
    limits = (limit for group, names in _groups(files) if (limit := _number(group / names[0])) is not None)
    return min([int(psutil.virtual_memory().total), *limits])


def describe_kill(files: Path = Path("/")) -> str:
    """Return a sentence where the kernel has killed processes of a control group of this one for memory; empty: it has
    not, as far as it says so."""
    for group, names in _groups(files):
        limit, peak = _number(group / names[0]), _number(group / _PEAK[names])
        if limit is None or not _kills(group):
            continue
        reached = f" and had {peak / GB:.1f} GB in use" if peak is not None else ""
        return f"the kernel kills processes here for memory: their control group may have {limit / GB:.1f} GB{reached}"
    return ""


def _kills(group: Path) -> bool:
    """Tell whether the kernel has killed a process of a control group for memory."""
    for name in ("memory.events", "memory.oom_control"):
        with suppress(OSError):
            said = re.search(r"^oom_kill (\d+)$", (group / name).read_text(), re.MULTILINE)
            if said is not None:
                return int(said[1]) > 0
    return False


def _groups(files: Path) -> Iterator[tuple[Path, _Names]]:
    """Yield the control groups that bound memory, with the names of their files."""
    for group in control_groups("memory", files):
        yield group, _VERSION_1 if (files / _MOUNT / "memory") in (group, *group.parents) else _VERSION_2


def control_groups(controller: str, files: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups that bound memory or cpu, the innermost first. `files`: files
    under which /proc and /sys lie."""
    for top, path in _memberships(controller, files):
        below = Path(path.lstrip("/"))
        yield from (top / below, *(top / parent for parent in below.parents))


def control_group(controller: str, files: Path = Path("/")) -> str:
    """Return the name of the control group that divides a resource between this process and others; "/": none but the
    root. A group of version 1 comes before that of version 2."""
    named = [path for _, path in sorted(_memberships(controller, files), key=lambda one: one[0] == files / _MOUNT)]
    return (named or ["/"])[0]


def _memberships(controller: str, files: Path) -> Iterator[tuple[Path, str]]:
    """Yield where a hierarchy of control groups lies that may have a controller, and this process's group in it."""
    try:
        rows = (files / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for row in rows:
        _, controllers, path = [*row.split(":", 2), "", ""][:3]
        if controllers == "":
            yield files / _MOUNT, path
        elif controller in controllers.split(","):
            yield files / _MOUNT / controller, path


def _room(group: Path, limit: str, used: str, cached: str) -> int | None:
    """Return how many bytes a control group has left; None: it has no limit, or is not visible here."""
    try:
        most, taken = (group / limit).read_text(), (group / used).read_text()
        stat = dict(row.split(" ", 1) for row in (group / "memory.stat").read_text().splitlines())
        return int(most) - int(taken) + int(stat.get(cached, 0))
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    """Return the number in a file; None: it has none, or one that version 1 writes for no limit."""
    try:
        number = int(path.read_text())
    except (OSError, ValueError):
        return None
    return number if number < _NO_LIMIT else None
