"""Extend open leases by the time in which the coordinator's process was not running.

Rules
1. A stopped process, a suspended machine and a wall clock that was set forward all count as absence. Open leases are
   extended by it before the next answer, as after a restart. A busy event loop is no absence and extends no lease:
   the process's running time tells the two apart (runtime/running_time.py).
2. After the wall clock was set back, leases that were sent in the future start anew at the present time.
"""

from collections.abc import Callable

import structlog

from echo2.coordinator.leases.lease_table import LeaseTable

ABSENCE_MS = 5_000
"""Milliseconds by which the wall clock must run ahead of the process's running time to count as an absence."""

log = structlog.get_logger("coordinator")


class Absence:
    """The check whether this process was not running for a while. `ran`: returns the seconds for which it has run,
    counted from any moment."""

    def __init__(self, leases: LeaseTable, ran: Callable[[], float]) -> None:
        self._leases = leases
        self.ran = ran
        self._checked: tuple[int, float] | None = None

    def check(self, now: int) -> None:
        """Extend open leases if this process was absent since the last call. `now`: ms. Call at each tick and before
        each answer."""
        ran = self.ran()
        if self._checked is not None:
            before, had_run = self._checked
            if now - before - 1000 * (ran - had_run) > ABSENCE_MS:
                away = self._leases.resume(now)
                log.warning("process was suspended; open leases extended", away_seconds=away / 1000)
            elif now < before - ABSENCE_MS:
                self._leases.resume(now)
                log.warning("clock was set back; leases of the future start anew", seconds=(before - now) / 1000)
        self._checked = now, ran
