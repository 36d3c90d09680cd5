"""Set the limit of open files, fit connections to it, and report shortages of descriptors.

Rules
1. At start the soft limit is raised to the hard one, at most to `MOST_DESCRIPTORS`: some systems give 256 or 1,024 by
   default.
2. Limits on connections are lowered to fit: `RESERVED_DESCRIPTORS` descriptors stay free for files, pipes and
   listeners.
3. A shortage of descriptors ends no process: the failed call is retried. Each shortage is counted; the log reports them
   rarely (runtime/log_throttle.py).
"""

import errno
import logging
import resource
import time
from collections.abc import Callable
from typing import Final

from echo2.runtime.log_throttle import LogThrottle

MOST_DESCRIPTORS: Final = 65_536
FALLBACKS: Final = (10_240, 4_096, 1_024)
"""Limits to try where the system refuses its own hard limit: macOS takes no more than OPEN_MAX, 10,240."""
RESERVED_DESCRIPTORS: Final = 160
"""Descriptors that no connection may take: open payloads (48), databases, logs, children, listeners, and a margin."""

log = logging.getLogger("runtime")


def raise_limit(most: int = MOST_DESCRIPTORS) -> int:
    """Raise the soft limit of open files to the hard one, at most to `most`. Return the soft limit in
    force, or `most` if that is lower."""
    soft, hard = (_finite(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    for wanted in (min(hard, most), *FALLBACKS):
        if soft < wanted <= hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
                return wanted
            except (ValueError, OSError) as error:
                log.debug("limit of open files stays below %d: %s", wanted, error)
    return min(soft, most)


def fit_connections(limit: int, *wanted: int) -> tuple[int, ...]:
    """Return how many connections of each kind fit under `limit` descriptors: as many as `wanted`, or in proportion.
    Where it is fewer, the log says so."""
    room, total = max(limit - RESERVED_DESCRIPTORS, len(wanted)), sum(wanted)
    if total <= room:
        return wanted
    log.warning(
        "settings allow %d connections, but %d open files allow only %d (%d are kept for files): using fewer; raise "
        "the limit (ulimit -n)",
        total,
        limit,
        room,
        RESERVED_DESCRIPTORS,
    )
    return tuple(number and max(1, number * room // total) for number in wanted)


def is_shortage(error: OSError) -> bool:
    """Tell whether a call failed because this process, or the machine, has no descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class Shortages(logging.Filter):
    """Count failures for lack of a descriptor, and log them rarely. As a logging filter: count those that libraries
    report."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        super().__init__()
        self._met = LogThrottle(clock)

    @property
    def count(self) -> int:
        """Shortages since the start."""
        return sum(self._met.counts().values())

    def count_failure(self, doing: str) -> None:
        """Count one failure while `doing` something."""
        if times := self._met.count(""):
            log.warning(
                "no descriptor is free while %s (%d times since the last such line): retrying; raise the limit "
                "of open files (ulimit -n) or lower the limits of connections",
                doing,
                times,
            )

    def filter(self, record: logging.LogRecord) -> bool:
        """Count a library's report of a shortage, and keep it out of the log."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError) and is_shortage(error):
            self.count_failure("accepting a connection")
            return False
        return True


SHORTAGES: Final = Shortages()
"""The one counter of this process, since all its threads share its descriptors."""


def watch() -> None:
    """Count connections that trio and asyncio report as not accepted; both retry by themselves."""
    for name in ("trio.serve_listeners", "asyncio"):
        logging.getLogger(name).addFilter(SHORTAGES)


def _finite(limit: int) -> int:
    return MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit
