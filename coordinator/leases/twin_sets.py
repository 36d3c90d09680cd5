"""Twins: leases of one prompt with the same seeds, under one version, given to different nodes.

Rules
1. The leases of one position and attempt (prompt_positions.py) are a *set* of twins. Each has its own id, node and
   lifetime, is judged by its own content alone, and is paid once. The column `twin` states why a lease is there: empty
   for the first, "canary" for one whose answer is known (canaries.py), "audit" for one that a second node generates as
   well (audits.py). A unique index allows one lease of each kind in a set. A Lease has no field for it, so no node can
   tell a canary or an audit from any other lease.
2. At most one group of a set is ever in the buffer: a unique index of the buffer's positions. A good group whose twin
   is there is accepted and paid in full, and not trainable. Its rewards are not counted a second time.
3. A set counts once in the room: as the lease whose group is in the buffer, else one that was
   received, else the newest that is open and no audit, else the audit (`counts`). The sums leave out the others of its
   leases, and every canary.
4. A position is returned once no lease of its set is open, waits for a verdict or was accepted; canaries are left out,
   and return none.
5. Equal tokens are what a set of honest nodes brings. Equality inside a set says nothing about copying. Where
   one of them is an audit, it is stated (audits.py, rule 5).
6. Leases of served tasks have no twins: their episodes are the operator's, one for each lease.
"""

from typing import Final, Literal

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.database.database import Database

Kind = Literal["", "canary", "audit"]
"""Kind of lease, as in the column `twin` (rule 1)."""
_OTHER_TWINS: Final = (
    "FROM leases o JOIN leases l ON l.position = o.position AND l.attempt = o.attempt AND l.id != o.id WHERE o.id = ?"
)
_BEST_TWIN_QUERY: Final = (
    "SELECT l.id FROM leases o JOIN leases l ON l.position = o.position AND l.attempt = o.attempt"
    " LEFT JOIN buffer b ON b.lease = l.id WHERE o.id = ?"
    " AND l.twin != 'canary' ORDER BY b.lease IS NULL, l.state != 'received', l.state != 'open',"
    " l.twin = 'audit', l.rowid DESC LIMIT 1"
)


class TwinSets:
    """The sets of twins in the table `leases`. Call what writes in the transaction that changes a lease."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recount(self, lease: bytes) -> None:
        """Choose anew which lease counts of the set of a lease that has changed (rule 3)."""
        if self._database.one(f"SELECT 1 {_OTHER_TWINS} LIMIT 1", (lease,)) is None:
            return
        best = self._database.value(_BEST_TWIN_QUERY, (lease,))
        query = (
            "SELECT l.id FROM leases o JOIN leases l ON l.position = o.position AND l.attempt = o.attempt"
            " WHERE o.id = ? AND l.counts != (l.id = ?)"
        )
        for (one,) in self._database.all(query, (lease, best)):
            self._database.do("UPDATE leases SET counts = ? WHERE id = ?", (one == best, one))

    def is_canary(self, lease: bytes) -> bool:
        return bool(self._database.value("SELECT twin = 'canary' FROM leases WHERE id = ?", (lease,)))

    def is_pending(self, lease: bytes) -> bool:
        """Tell whether a twin of a lease is open, waits for its verdict, or was accepted (rule 4)."""
        where = "l.twin != 'canary' AND (l.state IN ('open', 'received') OR v.verdict = 'accepted')"
        others = _OTHER_TWINS.replace(" WHERE", " LEFT JOIN verdicts v ON v.lease = l.id WHERE")
        return self._database.one(f"SELECT 1 {others} AND {where} LIMIT 1", (lease,)) is not None

    def on_decided(self, end: Decided) -> None:
        """Count a good group whose twin is in the buffer (rule 2)."""
        if end.code == "ok" and end.accepted is not None and end.accepted.spare:
            query = "INSERT INTO tallies VALUES ('spare twins', 1) ON CONFLICT DO UPDATE SET value = value + 1"
            self._database.do(query)
