"""Leases that were taken and not returned: how many are forgiven. Times in milliseconds.

Rules
1. In each hour `FREE` expired leases of a holder are forgiven, and `SHARE` of those that it was given. Beyond that its
   next lease comes after `PAUSE`, twice as long with each further one, at most after `LONGEST`.
2. The holder is the key; of a new key it is its connection, since keys are free.
3. Only an expiry counts. A group that was refused has other consequences (coordinator/accounts/), and what ended by the
   coordinator's fault or absence counts against nobody: a lease is extended by the time it was away.
4. It is operational state in run.sqlite. A row is dropped once its hour is over.
"""

from typing import Final, NamedTuple

from coordinator.database import Database
from runtime.backoff import Backoff

HOUR: Final = 3_600_000
FREE: Final = 3
SHARE: Final = 20
"""One in so many."""
PAUSE: Final = 15_000
LONGEST: Final = 900_000
_PAUSES: Final = Backoff(PAUSE, LONGEST)
COUNTED: Final = 10_000
"""Leases of an hour that are counted, at most."""


class ExpiryDebt(NamedTuple):
    """`expired`: leases within the hour. `wait`: milliseconds until the next lease."""

    expired: int
    wait: int


def pause_after(expired: int, given: int) -> int:
    """Return how long a holder waits after an expiry. `expired`, `given`: its leases within the hour."""
    beyond = expired - FREE - given // SHARE
    return int(_PAUSES.delay(beyond))


class ExpiryBudgets:
    """The table of holders. `expired` is part of the caller's transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def debt(self, holder: bytes, now: int) -> ExpiryDebt | None:
        """Return what keeps a holder waiting."""
        row = self._database.one("SELECT expired, until FROM budgets WHERE holder = ?", (holder,))
        return ExpiryDebt(row[0], row[1] - now) if row is not None and 0 < row[1] - now <= LONGEST else None

    def expired(self, holder: bytes, node: bytes | None, now: int) -> None:
        """A lease of this holder expired. `node`: its key, where that is the holder."""
        hour = now // HOUR
        self._database.do("DELETE FROM budgets WHERE hour < ?", (hour - 1,))
        row = self._database.one("SELECT expired FROM budgets WHERE holder = ? AND hour = ?", (holder, hour))
        count = 1 + (0 if row is None else row[0])
        until = now + pause_after(count, 0 if node is None else self._given(node, now))
        self._database.do("INSERT OR REPLACE INTO budgets VALUES (?, ?, ?, ?)", (holder, hour, count, until))

    def _given(self, node: bytes, now: int) -> int:
        query = "SELECT count(*) FROM (SELECT 1 FROM leases WHERE node = ? AND sent > ? LIMIT ?)"
        return int(self._database.value(query, (node, now - HOUR, COUNTED)))
