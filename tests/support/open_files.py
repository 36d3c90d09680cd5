"""The open files of this process: their number, a limit on it, and a shortage of descriptors."""

import contextlib
import os
import resource
from collections.abc import Iterator


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


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
