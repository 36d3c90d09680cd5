"""The expiry budget: how many leases a holder may let expire per hour before it has to pause. Times in milliseconds.

Rules
1. Per hour, `FREE_EXPIRIES` expired leases of a holder are forgiven, or as many as a key had at the first of them: a
   crash ends all leases of a node at once. One more is forgiven per `GROUPS_PER_EXPIRY` groups that it handed in. The
   next expiry starts a pause of `EXPIRY_PAUSE_MS`, during which the holder gets no lease. Each further expiry doubles
   the pause, up to `LONGEST_EXPIRY_PAUSE_MS`.
2. The holder is the node's key. For a new key it is the connection, since keys are free, and beside it the party, with
   `FREE_OF_PARTY` forgiven, since peer ids are free too: one subnet may open a connection per second. Of a relayed peer
   whose subnet is not known it is the relay.
3. An expiry counts, and for a new key a group refused for a fault that is a strike (coordinator/accounts/strikes.py):
   each such group leaves rows in run.sqlite for good, and the next key has no strikes. For other keys a refused group
   has other consequences (coordinator/accounts/). The coordinator's faults and absences count against no holder: a
   lease is extended by the time of an absence.
4. Budgets are operational state in run.sqlite. An expiry drops all rows from before the previous hour.
"""

from typing import Final, NamedTuple

from echo2.coordinator.database.database import Database
from echo2.p2p.limits.origin import Origin, unchosen
from echo2.runtime.backoff import Backoff

HOUR: Final = 3_600_000
FREE_EXPIRIES: Final = 3
FREE_OF_PARTY: Final = 24
GROUPS_PER_EXPIRY: Final = 20
"""One lease per so many groups."""
EXPIRY_PAUSE_MS: Final = 15_000
LONGEST_EXPIRY_PAUSE_MS: Final = 900_000
_EXPIRY_PAUSES: Final = Backoff(EXPIRY_PAUSE_MS, LONGEST_EXPIRY_PAUSE_MS)
MOST_COUNTED_LEASES: Final = 10_000
"""Most leases of an hour that are looked at."""


class ExpiryDebt(NamedTuple):
    """A pause that a holder has to make. `expired`: its expired leases within the hour. `wait`: milliseconds until it
    may have its next lease."""

    expired: int
    wait: int


def holders_of_new_key(origin: Origin) -> list[tuple[bytes, int]]:
    """Return the holders of the budgets of a new key with this origin, and how many expiries each is forgiven (rule 2);
    none for this process's own requests."""
    if not origin.connection:
        return []
    holders = [(origin.connection.encode(), FREE_EXPIRIES)]
    if origin.party and origin.party != origin.connection:
        holders.append((f"party {unchosen(origin.party)}".encode(), FREE_OF_PARTY))
    return holders


def pause_after(expired: int, groups: int, free: int = FREE_EXPIRIES) -> int:
    """Return how long a holder pauses after an expiry. `expired`, `groups`: how many of its leases expired, and how
    many groups it handed in, within the hour. `free`: how many are forgiven."""
    beyond = expired - free - groups // GROUPS_PER_EXPIRY
    return int(_EXPIRY_PAUSES.delay(beyond))


class ExpiryBudgets:
    """The table `budgets`: each holder's expired leases of the hour of its last expiry, and the end of its pause."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def debt(self, holder: bytes, now: int) -> ExpiryDebt | None:
        """Return the pause that a holder is in; None if there is none."""
        row = self._database.one("SELECT expired, until FROM budgets WHERE holder = ?", (holder,))
        return (
            ExpiryDebt(row[0], row[1] - now)
            if row is not None and 0 < row[1] - now <= LONGEST_EXPIRY_PAUSE_MS
            else None
        )

    def on_expiry(self, holder: bytes, node: bytes | None, now: int, free: int = FREE_EXPIRIES) -> None:
        """Count an expired lease of `holder`, in the caller's transaction. `node`: the node's key if that
        is the holder, else None. `free`: see `pause_after`."""
        hour = now // HOUR
        self._database.do("DELETE FROM budgets WHERE hour < ?", (hour - 1,))
        row = self._database.one("SELECT expired, forgiven FROM budgets WHERE holder = ? AND hour = ?", (holder, hour))
        if row is None:
            row = 0, free if node is None else max(free, 1 + self._count_lent(node))
        count, forgiven = 1 + row[0], row[1]
        until = now + pause_after(count, 0 if node is None else self._handed_in(node, now), forgiven)
        self._database.do(
            "INSERT OR REPLACE INTO budgets VALUES (?, ?, ?, ?, ?)", (holder, hour, count, forgiven, until)
        )

    def _count_lent(self, node: bytes) -> int:
        """Count the leases of a node that have not ended."""
        return int(self._database.value("SELECT count(*) FROM lent WHERE node = ?", (node,)))

    def _handed_in(self, node: bytes, now: int) -> int:
        newest = "SELECT id FROM leases WHERE node = ? AND sent > ? LIMIT ?"
        query = f"SELECT count(*) FROM ({newest}) l JOIN submissions s ON s.lease = l.id"
        return int(self._database.value(query, (node, now - HOUR, MOST_COUNTED_LEASES)))
