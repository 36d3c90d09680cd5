"""Estimate the chance that a lease of a new key brings a group that is learned from. Pure; times in milliseconds.

Rules
1. The chance is the share of the last `REMEMBERED_ENDS` leases of new keys whose groups came into the buffer. Leases
   that are overdue count as ended without one, so a flood of keys that return nothing is known long before its leases
   expire.
2. Before any has ended, as after a restart, it is 1: a new key is trusted to work until new keys have not.
3. Each request asks for the chance: it searches a sorted list, however many leases are open.
"""

import bisect
from collections import deque
from typing import Final

REMEMBERED_ENDS: Final = 16
DEFAULT_OVERDUE_MS: Final = 60_000
"""Milliseconds after which a lease is overdue while no node's time for a group is known."""


class NewcomerOdds:
    """The last leases of new keys in this process."""

    def __init__(self) -> None:
        self._overdue_from: dict[bytes, float] = {}
        self._sorted: list[float] = []
        """The values of `_overdue_from`."""
        self._ends: deque[bool] = deque(maxlen=REMEMBERED_ENDS)

    def give(self, lease: bytes, usual: float | None, now: int) -> None:
        """Note a lease of a new key. `usual`: time for a group of the fleet's nodes; None: not measured."""
        self._overdue_from[lease] = at = now + (DEFAULT_OVERDUE_MS if usual is None else usual)
        bisect.insort(self._sorted, at)

    def close(self, lease: bytes) -> None:
        """Note that a lease is not open any more. Any lease may be named."""
        at = self._overdue_from.pop(lease, None)
        if at is not None:
            del self._sorted[bisect.bisect_left(self._sorted, at)]

    def end(self, *, learned: bool) -> None:
        """Note the end of a lease of a new key. `learned`: whether its group came into the buffer."""
        self._ends.append(learned)

    def chance(self, now: int) -> float:
        """Return the chance of rule 1."""
        ended = len(self._ends) + bisect.bisect_left(self._sorted, now)
        return sum(self._ends) / ended if ended else 1.0

    def forget(self) -> None:
        """Forget the open leases: the coordinator was absent, and none of them is overdue."""
        self._overdue_from.clear()
        self._sorted.clear()
