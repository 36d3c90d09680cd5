"""The expiry budget: how many leases a holder may let expire per hour before it has to pause. Times in milliseconds.

Rules
1. Per hour, `FREE_EXPIRIES` expired leases of a holder are forgiven, or as many as a key had at the first of them: a
   crash ends all leases of a node at once. One more is forgiven per `GROUPS_PER_EXPIRY` groups that it handed in. The
   next expiry starts a pause of `EXPIRY_PAUSE_MS`, during which the holder gets no lease. Each further expiry doubles
   the pause, up to `LONGEST_EXPIRY_PAUSE_MS`.
2. The holder is the node's key. For a new key it is the connection, since keys are free, and beside it the party, with
   `FREE_OF_PARTY` forgiven, since peer ids are free too: one subnet may open a connection per second. Of a relayed peer
   whose subnet is not known it is the relay.
3. The expiries of known keys that are not forgiven count for their party as well, and the pause after one is as long as
   after that many of one key: an owner of many keys has one series of pauses. A key that keeps within its own budget
   makes none, whatever the others of its party do.
4. An expiry counts, and for a new key a group refused for a fault that is a strike (coordinator/accounts/strikes.py):
   each such group leaves rows in run.sqlite for good, and the next key has no strikes. For other keys a refused group
   has other consequences (coordinator/accounts/). The coordinator's faults and absences count against no holder: a
   lease is extended by the time of an absence.
5. A lease that its node gives back is no expiry: others have its prompt at once. It counts as many of the
   `EXPIRY_PARTS` of one as the share of its life that it was held for, `RETURN_PARTS` at least: one that is given back
   at the last moment was taken from others as an expired one was. With one part forgiven per group handed in, a node
   that works hardly pauses for them, and one that only gives back cannot take leases from others for ever. A superseded
   one counts nothing (superseded_leases.py).
6. Budgets are operational state in run.sqlite. An hour begins with a holder's first expiry, so that no two budgets are
   used up at once. An expiry drops the rows of hours that have passed, and whose pauses must have.
"""

from math import ceil
from typing import Final, NamedTuple

from echo2.coordinator.database.database import Database
from echo2.p2p.limits.origin import Origin, unchosen
from echo2.runtime.backoff import Backoff

HOUR: Final = 3_600_000
FREE_EXPIRIES: Final = 3
FREE_OF_PARTY: Final = 24
GROUPS_PER_EXPIRY: Final = 8
"""One lease per so many groups."""
EXPIRY_PAUSE_MS: Final = 15_000
LONGEST_EXPIRY_PAUSE_MS: Final = 900_000
_EXPIRY_PAUSES: Final = Backoff(EXPIRY_PAUSE_MS, LONGEST_EXPIRY_PAUSE_MS)
EXPIRY_PARTS: Final = GROUPS_PER_EXPIRY
"""Parts in which expiries are counted."""
RETURN_PARTS: Final = 1
MOST_COUNTED_LEASES: Final = 10_000
"""Most leases of an hour that are looked at."""


class ExpiryDebt(NamedTuple):
    """A pause that a holder has to make. `expired`: its expired leases within the hour, with what
    rule 5 adds. `wait`: milliseconds until it may have its next lease."""

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


def pause_after(beyond: int) -> int:
    """Return how long a holder pauses after an expiry. `beyond`: how many of the hour were not forgiven."""
    return int(_EXPIRY_PAUSES.delay(beyond))


def parts_of_return(had: int, life: int) -> int:
    """Return the parts that a lease given back counts (rule 5). `had`, `life`: ms for which its node had it, and could
    have had it."""
    return max(RETURN_PARTS, min(EXPIRY_PARTS, EXPIRY_PARTS * had // max(1, life)))


class ExpiryBudgets:
    """The table `budgets`: each holder's expired leases, in parts, of the hour that its first one began, and the end of
    its pause."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def debt(self, holder: bytes, now: int) -> ExpiryDebt | None:
        """Return the pause that a holder is in; None if there is none."""
        row = self._database.one("SELECT expired, until FROM budgets WHERE holder = ?", (holder,))
        return (
            ExpiryDebt(row[0] // EXPIRY_PARTS, row[1] - now)
            if row is not None and 0 < row[1] - now <= LONGEST_EXPIRY_PAUSE_MS
            else None
        )

    def on_expiry(self, node: bytes, party: str, now: int, parts: int = EXPIRY_PARTS) -> None:
        """Count a lease of a known key that ended without a group, in the caller's transaction."""
        beyond = self._count(node, max(FREE_EXPIRIES, 1 + self._count_lent(node)), now, parts)
        beyond -= self._handed_in(node, now) * EXPIRY_PARTS // GROUPS_PER_EXPIRY
        if beyond > 0 and party:
            beyond = max(beyond, self._count(f"known {unchosen(party)}".encode(), 0, now, parts))
        self._pause(node, beyond, now)

    def on_end_of_new(self, origin: Origin, now: int, parts: int = EXPIRY_PARTS) -> None:
        """Count a lease of a new key, in the caller's transaction (rules 2 and 4)."""
        for holder, free in holders_of_new_key(origin):
            self._pause(holder, self._count(holder, free, now, parts), now)

    def _count(self, holder: bytes, free: int, now: int, parts: int) -> int:
        """Count parts of an expiry; return how many of this hour are not forgiven. `free`: expiries that are, as it was
        at the first of them."""
        kept = now - HOUR - LONGEST_EXPIRY_PAUSE_MS, now
        self._database.do("DELETE FROM budgets WHERE since NOT BETWEEN ? AND ?", kept)
        query = "SELECT since, expired, forgiven, until FROM budgets WHERE holder = ?"
        since, expired, forgiven, until = self._database.one(query, (holder,)) or (now, 0, free, 0)
        if since < now - HOUR:
            since, expired, forgiven = now, 0, free
        row = holder, since, expired + parts, forgiven, until
        self._database.do("INSERT OR REPLACE INTO budgets VALUES (?, ?, ?, ?, ?)", row)
        return int(expired + parts - EXPIRY_PARTS * forgiven)

    def _pause(self, holder: bytes, beyond: int, now: int) -> None:
        if beyond > 0:
            until = now + pause_after(ceil(beyond / EXPIRY_PARTS))
            self._database.do("UPDATE budgets SET until = ? WHERE holder = ?", (until, holder))

    def _count_lent(self, node: bytes) -> int:
        """Count the leases of a node that have not ended."""
        return int(self._database.value("SELECT count(*) FROM lent WHERE node = ?", (node,)))

    def _handed_in(self, node: bytes, now: int) -> int:
        newest = "SELECT id FROM leases WHERE node = ? AND sent > ? LIMIT ?"
        query = f"SELECT count(*) FROM ({newest}) l JOIN submissions s ON s.lease = l.id"
        return int(self._database.value(query, (node, now - HOUR, MOST_COUNTED_LEASES)))
