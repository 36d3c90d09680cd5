"""An estimate of when to request the next leases, and how many: the engine always has rows for its places. Pure.

A lease binds the version loaded now, and its time runs from the request. So it is requested as late as possible: once
the engine has a free place, or `LEASE_ROUND_TRIPS` round trips before a free place is expected. Groups that end leave
free places once no more rows wait for them. A group is expected to last, from its first place, as long as the last one
that ended. Requests made together are answered before the next are made. So as many are made as groups can begin within
these round trips: on a device with many places several groups end in each, and a group may be shorter than one.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from echo2.engines.engine import EngineRows

LEASE_ROUND_TRIPS: Final = 2.0
"""One round trip for the request, one as a margin for the network and the coordinator's disk."""
MOST_AHEAD: Final = 1024
"""Most groups that are counted."""


class _Group:
    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.given = False
        """Whether the engine has it: its rows count among those that the engine tells of."""
        self.started: float | None = None
        """Time of its first place; None: it waits."""


class LeasePrefetch:
    """The estimate for one engine, from the last round trip and the last group. All times are in seconds."""

    def __init__(self) -> None:
        self._trip = 0.0
        self._duration: float | None = None
        self._groups: dict[bytes, _Group] = {}

    @property
    def under_way(self) -> int:
        """The number of groups whose leases are here and that have not ended."""
        return len(self._groups)

    @property
    def leases(self) -> list[bytes]:
        """The leases of these groups."""
        return list(self._groups)

    @property
    def waiting(self) -> list[bytes]:
        """The leases of those that have no place yet."""
        return [lease for lease, group in self._groups.items() if group.started is None]

    def start_time_of(self, lease: bytes) -> float | None:
        """Return when a group under way had its first place; None: it waits."""
        return self._groups[lease].started

    def on_answer(self, seconds: float) -> None:
        """Record the time from the request of a lease to its arrival."""
        self._trip = seconds

    def on_lease(self, lease: bytes, rows: int) -> None:
        """Record that a lease is here, for a group of so many rows."""
        self._groups[lease] = _Group(rows)

    def on_grant(self, lease: bytes) -> None:
        """Record that a group is given to the engine."""
        self._groups[lease].given = True

    def on_rows(self, rows: EngineRows, now: float) -> None:
        """Record the engine's report on its rows: the groups given last are those that wait."""
        waiting = rows.waiting
        for group in reversed([one for one in self._groups.values() if one.given]):
            if waiting >= group.rows:
                group.started = None
            elif group.started is None:
                group.started = now
            waiting = max(0, waiting - group.rows)

    def on_end(self, lease: bytes, now: float) -> None:
        """Record the end of a group."""
        group = self._groups.pop(lease)
        if group.started is not None:
            self._duration = now - group.started

    def lacking(self, rows: EngineRows, group: int, now: float) -> int:
        """Return how many groups of `group` rows the engine can begin, beside those that it was given, until leases
        requested now are here; at least the one that is due."""
        soon = now + LEASE_ROUND_TRIPS * self._trip
        beginnings = takewhile(lambda begins: begins <= soon, self._beginnings(rows, group, now))
        return max(1, sum(1 for _ in islice(beginnings, MOST_AHEAD)))

    def wait(self, rows: EngineRows, now: float) -> float:
        """Return the time until the next lease is to be requested, if nothing changes before; infinity: never."""
        if rows.free > sum(one.rows for one in self._groups.values() if not one.given) or not self._groups:
            return 0.0
        begins = next(self._beginnings(rows, 1, now), math.inf)
        return max(0.0, begins - LEASE_ROUND_TRIPS * self._trip - now)

    def _beginnings(self, rows: EngineRows, group: int, now: float) -> Iterator[float]:
        """Yield the times at which further groups of `group` rows are expected to get their first places, in order."""
        waiting = deque(one.rows for one in self._groups.values() if one.started is None)
        counted = sum(one.rows for one in self._groups.values() if one.given and one.started is None)
        free = rows.limit - rows.running - max(0, rows.waiting - counted)
        ends: list[tuple[float, int]] = []
        if self._duration is not None:
            ends = [
                (one.started + self._duration, one.rows) for one in self._groups.values() if one.started is not None
            ]
            heapq.heapify(ends)
        while True:
            while free > 0:
                size = waiting.popleft() if waiting else 0
                if not size:
                    yield now
                free -= size or group
                if self._duration is not None:
                    heapq.heappush(ends, (now + self._duration, size or group))
            if not ends:
                return
            ended, places = heapq.heappop(ends)
            now, free = max(now, ended), free + places
