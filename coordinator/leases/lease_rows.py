"""Look up leases in run.sqlite: one by its id, those of a node, those that are open, and the sums by version."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple

from echo2.coordinator.database.database import Database, marks
from echo2.coordinator.leases.open_lease_limit import MOST_OPEN_LEASES
from echo2.coordinator.leases.superseded_leases import WaitingLease
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease

State = Literal["open", "received", "decided", "expired", "returned"]

LOOKED_UP_AT_ONCE: Final = 1_000
"""Leases per query: SQLite bounds the parameters of one."""


class LeaseRecord(NamedTuple):
    """A stored lease. `expires` may be later than the lease itself says (lease_table.py, rule 4)."""

    lease: Lease
    expires: int
    state: State

    @property
    def without_group(self) -> bool:
        """Whether it ended before a group came."""
        return self.state in ("expired", "returned")


class LeaseRows:
    """The rows of the table `leases`, as far as they are only read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def root_of(self, era: int, version: int) -> bytes | None:
        """Return the content root of a published version; None: it is not published."""
        root: bytes | None = self._database.value(
            "SELECT root FROM versions WHERE era = ? AND version = ?", (era, version)
        )
        return root

    def last_era(self) -> int:
        """Return the newest era with a published version; 0 before the first."""
        return int(self._database.value("SELECT coalesce(max(era), 0) FROM versions"))

    def find(self, lease: bytes) -> LeaseRecord | None:
        row = self._database.one("SELECT document, expires, state FROM leases WHERE id = ?", (lease,))
        return None if row is None else LeaseRecord(decode(row[0], Lease), *row[1:])

    def party_of(self, lease: bytes) -> str:
        """Return the party (p2p/limits/origin.py) to which a lease was given."""
        return str(self._database.value("SELECT party FROM leases WHERE id = ?", (lease,)))

    def has_undecided(self, node: bytes) -> bool:
        """Tell whether a group of a node waits for its verdict."""
        query = "SELECT 1 FROM lent o JOIN leases l ON l.id = o.lease WHERE o.node = ? AND l.state = 'received' LIMIT 1"
        return self._database.one(query, (node,)) is not None

    def waiting_among(self, leases: Collection[bytes]) -> list[WaitingLease]:
        """Return those of these leases that are open, of training prompts of the newest era, and count."""
        where = "state = 'open' AND era = ? AND counts"
        listed, era, waiting = list(leases), self.last_era(), list[WaitingLease]()
        for first in range(0, len(listed), LOOKED_UP_AT_ONCE):
            some = listed[first : first + LOOKED_UP_AT_ONCE]
            query = f"SELECT version, sent, id FROM leases WHERE id IN ({marks(some)}) AND {where}"
            waiting += [WaitingLease(*row) for row in self._database.all(query, (*some, era))]
        return waiting

    def on_their_way(self, era: int, now: int) -> Counter[int]:
        """Count the open leases and undecided groups of an era by version; a set of twins counts once, a late lease not
        at all."""
        query = "SELECT version, open + received - twin_open - twin_received FROM on_their_way WHERE era = ?"
        return Counter(dict(self._database.all(query, (era,)))) - self.late(era, now)

    def late(self, era: int, now: int) -> Counter[int]:
        """Count the open leases of an era that are late (lease_lifetime.py, rule 5) by version."""
        query = (
            "SELECT version, count(*) FROM leases WHERE state = 'open' AND sent + late_after < ? AND expires >= ?"
            " AND era = ? AND counts GROUP BY version"
        )
        return Counter(dict(self._database.all(query, (now, now, era))))

    def open_among(self, node: bytes, leases: Sequence[bytes]) -> list[bytes]:
        """Return those of these leases that are open leases of the node, in order."""
        query = f"SELECT id FROM leases WHERE id IN ({marks(leases)}) AND node = ? AND state = 'open'"
        still_open = {row[0] for row in self._database.all(query, (*leases, node))}
        return [lease for lease in leases if lease in still_open]

    def still_open(self, leases: Collection[bytes]) -> set[bytes]:
        listed, still = list(leases), set[bytes]()
        for first in range(0, len(listed), LOOKED_UP_AT_ONCE):
            some = listed[first : first + LOOKED_UP_AT_ONCE]
            query = f"SELECT id FROM leases WHERE id IN ({marks(some)}) AND state = 'open'"
            still |= {row[0] for row in self._database.all(query, (*some,))}
        return still

    def waited_behind_work(self, node: bytes, idle: Collection[bytes], leases: Sequence[bytes]) -> list[bytes]:
        """Return those of a node's leases that waited while it worked on others (superseded_leases.py, rule 5). `idle`:
        its leases that it has not begun, or gives back."""
        if not leases:
            return []
        query = "SELECT id FROM leases WHERE state = 'open' AND node = ?"
        if {row[0] for row in self._database.all(query, (node,))} - set(idle):
            return list(leases)
        newest = "SELECT id FROM leases WHERE node = ? ORDER BY sent DESC LIMIT ?"
        query = f"SELECT max(s.at) FROM ({newest}) l JOIN submissions s ON s.lease = l.id"
        handed_in = self._database.value(query, (node, 2 * MOST_OPEN_LEASES)) or 0
        query = f"SELECT id FROM leases WHERE id IN ({marks(leases)}) AND sent <= ?"
        behind = {row[0] for row in self._database.all(query, (*leases, handed_in))}
        return [lease for lease in leases if lease in behind]

    def due(self, now: int, most: int) -> list[bytes]:
        """Return at most `most` open leases whose time has passed, oldest first."""
        query = "SELECT id FROM leases WHERE state = 'open' AND expires < ? ORDER BY expires LIMIT ?"
        rows = self._database.all(query, (now, most))
        return [row[0] for row in rows]

    def oldest_in_use(self) -> tuple[int, int] | None:
        """Return (era, version) of the oldest version that an open lease or an undecided submission names."""
        return self._database.one("SELECT era, version FROM on_their_way ORDER BY era, version LIMIT 1")
