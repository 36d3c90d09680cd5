"""Give open leases back the time in which this process was not there.

Rules
1. Where this process was stopped, its machine suspended, or the wall clock set forward, open leases get that time back
   before the first answer after it, as after a restart. An event loop that was only busy gives no lease more time:
   `ran` tells the two apart (runtime/running_time.py).
2. Where the wall clock was set back, leases from ahead begin anew.
"""

from collections.abc import Callable

import structlog

from coordinator.rollouts.lease_table import LeaseTable

STOPPED = 5_000
"""Milliseconds of the wall clock, less those in which this process ran, from which on it was not there."""

log = structlog.get_logger("coordinator")


class Absence:
    """`ran`: seconds that this process ran, counted from any moment."""

    def __init__(self, leases: LeaseTable, ran: Callable[[], float]) -> None:
        self._leases = leases
        self.ran = ran
        self._checked: tuple[int, float] | None = None

    def check(self, now: int) -> None:
        """Note that this process is there, and make good an absence before. Call at each tick, and before an answer."""
        ran = self.ran()
        if self._checked is not None:
            before, had_run = self._checked
            if now - before - 1000 * (ran - had_run) > STOPPED:
                away = self._leases.resume(now)
                log.warning("process was suspended; open leases extended", away_seconds=away / 1000)
            elif now < before - STOPPED:
                self._leases.resume(now)
                log.warning("the clock was set back; leases from ahead begin anew", seconds=(before - now) / 1000)
        self._checked = now, ran
