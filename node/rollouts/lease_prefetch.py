"""An estimate of when to request the next lease, so that the engine always has rows for its places. Pure.

A lease binds the version loaded now, and its time runs from the request. So it is requested as late as possible: once
the engine has a free place, or `TRIPS` round trips before a free place is expected. Groups that end leave free places
once no more rows wait for them. A group is expected to last, from its first place, as long as the last one that ended.
"""

import math
from typing import Final

from engines.engine import EngineRows

TRIPS: Final = 2.0
"""One round trip for the request, one as a margin for the network and the coordinator's disk."""


class _Group:
    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.started: float | None = None
        """When it got its first place; None: it waits."""


class LeasePrefetch:
    """The estimate for one engine, from the last round trip and the last group. All times are in seconds."""

    def __init__(self) -> None:
        self._trip = 0.0
        self._duration: float | None = None
        self._groups: dict[bytes, _Group] = {}

    @property
    def under_way(self) -> int:
        """The number of groups that were given to the engine and have not ended."""
        return len(self._groups)

    @property
    def leases(self) -> list[bytes]:
        """The leases of these groups."""
        return list(self._groups)

    @property
    def waiting(self) -> list[bytes]:
        """The leases of those that have no place yet."""
        return [lease for lease, group in self._groups.items() if group.started is None]

    def answered(self, seconds: float) -> None:
        """Record the time from the request of a lease to its arrival."""
        self._trip = seconds

    def begun(self, lease: bytes, rows: int) -> None:
        """Record that a group of so many rows was given to the engine."""
        self._groups[lease] = _Group(rows)

    def told(self, rows: EngineRows, now: float) -> None:
        """Record the engine's report on its rows: the groups given last are those that wait."""
        waiting = rows.waiting
        for group in reversed(self._groups.values()):
            if waiting >= group.rows:
                group.started = None
            elif group.started is None:
                group.started = now
            waiting = max(0, waiting - group.rows)

    def ended(self, lease: bytes, now: float) -> None:
        """Record the end of a group."""
        group = self._groups.pop(lease)
        if group.started is not None:
            self._duration = now - group.started

    def lacking(self, rows: EngineRows, group: int) -> int:
        """Return how many groups of `group` rows the engine can take now, at least the one that is due."""
        return max(1, -(-(rows.limit - rows.running - rows.waiting) // group))

    def wait(self, rows: EngineRows, now: float) -> float:
        """Return the time until the next lease is to be requested, if nothing changes before; infinity: never."""
        free = rows.limit - rows.running - rows.waiting
        if free > 0 or not self._groups:
            return 0.0
        if self._duration is None:
            return math.inf
        started = sorted((group.started, group.rows) for group in self._groups.values() if group.started is not None)
        for since, places in started:
            free += places
            if free > 0:
                return max(0.0, since + self._duration - TRIPS * self._trip - now)
        return math.inf
