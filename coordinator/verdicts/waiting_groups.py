"""The received groups that wait for the scorer: the table `undecided`, by version, party and time of receipt.

Rules
1. A group is in the table from its receipt to its verdict. `put` is part of the transaction that stores the submission.
   A trigger deletes the row in the transaction in which the lease leaves the state `received`.
2. Every query uses an index: it reads as much for ten waiting groups as for a hundred thousand.
3. Within a visit to one version the parties are served by deficit round robin.
4. A group stays in memory, as it was decoded at receipt, until a visit takes it. Beyond `MOST_BYTES` the oldest are
   dropped. A group counts with its whole submission, and with the objects that were decoded from it and from its lease.
   Groups that are not in memory, as after a restart, are read from run.sqlite.
5. The table alone says which groups wait. A group in memory without a row is never taken, and the next group under its
   lease replaces it.
6. A verified group that waits for its rewards leaves the table (`leave`). After a restart it is in the table again
   (`restore`), and is verified again.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.deficit_round_robin import DeficitRoundRobin, OldestGroup
from echo2.coordinator.verdicts.scoring_order import PendingVersion
from echo2.coordinator.verification.submitted_group import SubmittedGroup, decode_stored_group
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease

_UNDER_VERSION_QUERY: Final = "SELECT party, at, lease, tokens FROM undecided WHERE era = ? AND version = ?"
MOST_BYTES: Final = 32 << 20
PER_OBJECT: Final = 1024
"""Bytes that a decoded rollout occupies besides its arrays, and a lease besides its prompt."""
PER_TOKEN: Final = 36
"""Bytes that a token of a prompt occupies: an int and its place in the list."""
_BEFORE_FIRST_GROUP: Final = (-1, b"")
"""(at, lease) before those of every group."""


class Undecided(NamedTuple):
    """A group that waits for its verdict. `at`: when it was received, ms."""

    lease: Lease
    submission: SubmittedGroup
    at: int


class DecodedGroups:
    """A bounded cache of groups as they were decoded at receipt (rule 4)."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._groups: OrderedDict[bytes, tuple[Undecided, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: Undecided) -> None:
        """Add a group, and drop the oldest beyond the bound. Its token ids stay packed."""
        submission = group.submission
        for rollout in submission.rollouts:
            rollout.pack()
        nbytes = submission.nbytes + PER_TOKEN * len(group.lease.prompt) + PER_OBJECT * (1 + len(submission.rollouts))
        self.pop(group.lease.id)
        self._groups[group.lease.id] = group, nbytes
        self._bytes += nbytes
        while self._bytes > self._most:
            self.pop(next(iter(self._groups)))

    def pop(self, lease: bytes) -> Undecided | None:
        group, nbytes = self._groups.pop(lease, (None, 0))
        self._bytes -= nbytes
        return group


class WaitingGroups:
    """The table `undecided`, with a cache of decoded groups."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._order = DeficitRoundRobin()
        self._decoded = DecodedGroups()

    def put(self, lease: Lease, group: SubmittedGroup, at: int) -> None:
        """Add a group that was received at `at`, ms. Part of the caller's transaction."""
        self._decoded.put(Undecided(lease, group, at))
        cost = len(lease.prompt) + sum(sum(rollout.turns) for rollout in group.rollouts)
        self._database.do(
            "INSERT INTO undecided SELECT era, version, party, ?, id, ? FROM leases WHERE id = ?", (at, cost, lease.id)
        )

    def leave(self, group: Undecided) -> None:
        """Take a verified group out of the table until it is decided (rule 6)."""
        lease = group.lease
        self._database.do(
            "DELETE FROM undecided WHERE era = ? AND version = ? AND at = ? AND lease = ?"
            " AND party = (SELECT party FROM leases WHERE id = ?)",
            (lease.era, lease.version, group.at, lease.id, lease.id),
        )

    def restore(self) -> None:
        """Put every received group that is not in the table there again (rule 6). Call once after each start."""
        self._database.do(
            "INSERT INTO undecided SELECT l.era, l.version, l.party, s.at, l.id, 1 + length(s.payload) / 8"
            " FROM leases l JOIN submissions s ON s.lease = l.id WHERE l.state = 'received'"
            " AND NOT EXISTS (SELECT 1 FROM undecided u WHERE u.lease = l.id AND u.era = l.era"
            " AND u.version = l.version AND u.party = l.party AND u.at = s.at)"
        )

    def versions(self) -> list[PendingVersion]:
        """Return the versions with waiting groups, oldest first."""
        rows = self._database.all(
            "SELECT era, version, (SELECT min(at) FROM undecided u WHERE u.era = o.era AND u.version = o.version) since"
            " FROM on_their_way o WHERE received > 0 AND since NOT NULL ORDER BY era, version"
        )
        return [PendingVersion(*row) for row in rows]

    def visit(self, under: PendingVersion) -> "Visit":
        """Start to take the groups that wait under one version."""
        return Visit(self._database, self._decoded, self._order, under)

    def all(self, most: int) -> list[Undecided]:
        """Return at most `most` waiting groups, oldest version first, then in the order of receipt."""
        rows = self._database.all("SELECT lease FROM undecided ORDER BY era, version, at, lease LIMIT ?", (most,))
        return [read_waiting_group(self._database, row[0]) for row in rows]


class Visit:
    """The scorer's visit to one version: yields its waiting groups, also those that come meanwhile, each once."""

    def __init__(
        self, database: Database, decoded: DecodedGroups, order: DeficitRoundRobin, under: PendingVersion
    ) -> None:
        self._database = database
        self._decoded = decoded
        self._order = order
        self._under = under.era, under.version
        self._taken: dict[str, tuple[int, bytes]] = {}
        """By party, the last group taken: (at, lease)."""

    def take(self) -> Undecided | None:
        """Take the next group by deficit round robin; None if none is left."""
        head = self._order.next(self._oldest, self._after)
        if head is None:
            return None
        self._taken[head.party] = head.at, head.lease
        return self._decoded.pop(head.lease) or read_waiting_group(self._database, head.lease)

    def _oldest(self, party: str) -> OldestGroup | None:
        """Return the party's group that follows the last one taken."""
        taken = self._taken.get(party, _BEFORE_FIRST_GROUP)
        row = self._database.one(
            f"{_UNDER_VERSION_QUERY} AND party = ? AND (at, lease) > (?, ?) ORDER BY at, lease LIMIT 1",
            (*self._under, party, *taken),
        )
        return None if row is None else OldestGroup(*row)

    def _after(self, party: str | None) -> OldestGroup | None:
        """Return the oldest group of the next party that has one left; groups that this visit has taken do not count.
        `party`: the name before the next; None: start with the first party."""
        while True:
            where, names = ("", ()) if party is None else (" AND party > ?", (party,))
            row = self._database.one(
                f"{_UNDER_VERSION_QUERY}{where} ORDER BY party, at, lease LIMIT 1", (*self._under, *names)
            )
            if row is None:
                return None
            party = str(row[0])
            head = self._oldest(party) if party in self._taken else OldestGroup(*row)
            if head is not None:
                return head


def read_waiting_group(database: Database, lease: bytes) -> Undecided:
    """Read a group that waits from run.sqlite."""
    document, payload, at = database.all(
        "SELECT l.document, s.payload, s.at FROM leases l JOIN submissions s ON s.lease = l.id WHERE l.id = ?", (lease,)
    )[0]
    return Undecided(decode(document, Lease), decode_stored_group(payload), at)
