"""The files that an environment's process may read and write (runtime/file_access.py).

Rules
1. It reads this system's programs, libraries and settings, this Python with all packages on its search path, the
   tokenizer, what its task's name names (`plugins.files_of`), and what the operator adds (`environment.files`).
2. It writes in the folder in which it works, and to the devices that every program uses. No run folder, key file or
   home is among them, unless it lies in a folder of rule 1: `echo2-coord doctor` tries that.
3. Of /proc it sees its own namespace's, and where it has none, itself and what describes the machine.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/nix/store", "/gnu/store", "/sys/devices/system",
    "/sys/fs/cgroup",
)  # fmt: skip
_OF_A_SHARED_PROC: Final = ("self", "cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version")
_WRITTEN: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
_NAME_SERVERS: Final = "/etc/resolv.conf"
"""Often a link to a file elsewhere."""


def readable(extra: Iterable[str], *, own_proc: bool) -> Iterator[Path]:
    """Yield the files and folders that may be read (rules 1 and 3). `extra`: those of this task."""
    yield from map(Path, (*_SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix, *filter(None, sys.path), *extra))
    yield Path(_NAME_SERVERS).resolve()
    yield from [Path("/proc")] if own_proc else [Path("/proc", name) for name in _OF_A_SHARED_PROC]


def writable() -> Iterator[Path]:
    """Yield the files and folders that may be written, too (rule 2)."""
    yield from map(Path, (".", *_WRITTEN))
