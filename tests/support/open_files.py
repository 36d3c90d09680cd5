"""The open files of this process: their number, a limit on it, and a shortage of descriptors."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def open_files() -> list[Path]:
    """Return the paths of the open files of this process; none where the system has no /proc."""
    found = list[Path]()
    if not Path("/proc/self/fd").exists():
        return found
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
    return found


@contextlib.contextmanager
def limited(files: int) -> Iterator[None]:
    """Limit the number of open files, as `ulimit -S -n` does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def everything_taken() -> Iterator[None]:
    """Take every free descriptor of this process during the block."""
    taken: list[int] = []
    with limited(max(map(int, os.listdir("/dev/fd"))) + 2):
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            yield
        finally:
            for descriptor in taken:
                os.close(descriptor)
