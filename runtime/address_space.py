"""Bound what this process allocates meanwhile, as code that decodes foreign files does: they say little of their size.

1. Beyond the bound an allocation fails, as it does where the memory is used up, before any of it is taken. Allocations
   of other threads fail with it meanwhile. One thread at a time has a bound: else the last to leave would put back that
   of another, for good.
2. A lower limit of the process stays. Where the system has no such limit, or none that it enforces (macOS), there is
   no bound.
"""

import contextlib
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SIZE: Final = Path("/proc/self/statm")
"""Pages of this process; the first number is that of its address space."""
_BOUND_LOCK: Final = threading.Lock()


@contextlib.contextmanager
def at_most(more: int) -> Iterator[None]:
    """Let the address space grow by at most `more` bytes in the block."""
    with _BOUND_LOCK:
        try:
            size = int(_SIZE.read_text().split()[0]) * resource.getpagesize()
        except OSError:  # no such file: not Linux
            yield
            return
        before, hard = resource.getrlimit(resource.RLIMIT_AS)
        least = min((one for one in (before, hard) if one != resource.RLIM_INFINITY), default=size + more)
        resource.setrlimit(resource.RLIMIT_AS, (min(size + more, least), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, hard))
