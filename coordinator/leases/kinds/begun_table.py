"""The tokens that nodes have reported of groups under way, and the groups that wait for another node: two tables.

Rules
1. A report is appended, and never changed. All of it is deleted by a trigger when the lease's group is received or its
   row is deleted; by `drop` when the lease ends and is not moved, or its tokens are refused.
2. reported -> unverified -> waiting -> over. Each step is one transaction with what it does: the end of the lease, the
   verdict on the tokens, the second lease or the return of the position. So a kill leaves one of these states.
3. A position is returned (prompt_positions.py) only on leaving `unverified` or `waiting` without a second lease.
4. The tokens of a moved lease stay for the challenge window, with the row of the lease (token_storage.py, rule 4).
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.kinds.moving import SampleProgress
from echo2.p2p.wire_types import decode
from echo2.protocol.partial_groups import PartialRequest

_PROGRESS = msgspec.msgpack.Decoder(list[SampleProgress])
_COLUMNS = "lease, position, attempt, reasons, era, version, since"
_WAITING = "state IN ('unverified', 'waiting') AND state = 'waiting'"
"""The first condition is that of the partial index `begun_groups_moved`. Without it each query would read the reports
of all groups under way."""


class ReportedGroup(NamedTuple):
    """The reports of an open lease. `at`: of the last one, ms."""

    at: int
    samples: list[SampleProgress]

    @property
    def tokens(self) -> int:
        """The tokens of all samples."""
        return sum(one.tokens for one in self.samples)


class MovedGroup(NamedTuple):
    """A lost lease whose group is moved. `reasons`: of earlier ends of its position. `since`: of its state, ms."""

    lease: bytes
    position: int
    attempt: int
    reasons: str
    era: int
    version: int
    since: int


class BegunSample(NamedTuple):
    """Report of a node about a sample. `logprobs`: float32 little-endian."""

    tokens: list[int]
    logprobs: bytes


class BegunTable:
    """The tables `begun_groups` and `begun_tokens`. Call what writes in the caller's transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def reported(self, lease: bytes) -> ReportedGroup | None:
        """Return the reports of an open lease; None: there are none."""
        row = self._database.one(
            "SELECT at, samples FROM begun_groups WHERE lease = ? AND state = 'reported'", (lease,)
        )
        return None if row is None else ReportedGroup(row[0], _PROGRESS.decode(row[1]))

    def append(self, lease: bytes, samples: Sequence[SampleProgress], data: bytes, now: int) -> None:
        """Write a report. `samples`: the progress after it. `data`: an encoded PartialRequest."""
        query = "SELECT coalesce(max(number) + 1, 0) FROM begun_tokens WHERE lease = ?"
        number = self._database.value(query, (lease,))
        self._database.do("INSERT INTO begun_tokens VALUES (?, ?, ?)", (lease, number, data))
        self._database.do(
            "INSERT INTO begun_groups (lease, at, samples, state) VALUES (?, ?, ?, 'reported')"
            " ON CONFLICT DO UPDATE SET at = excluded.at, samples = excluded.samples",
            (lease, now, msgspec.msgpack.encode(samples)),
        )

    def tokens(self, lease: bytes, samples: int) -> list[BegunSample]:
        """Return what was reported of each sample of a lease."""
        begun = [BegunSample([], b"") for _ in range(samples)]
        for (data,) in self._database.all("SELECT payload FROM begun_tokens WHERE lease = ? ORDER BY number", (lease,)):
            new = decode(data, PartialRequest).samples
            begun = [
                BegunSample(at.tokens + list(one.tokens), at.logprobs + one.logprobs)
                for at, one in zip(begun, new, strict=True)
            ]
        return begun

    def drop(self, lease: bytes) -> None:
        """Delete what was reported of a lease."""
        self._database.do("DELETE FROM begun_groups WHERE lease = ?", (lease,))
        self._database.do("DELETE FROM begun_tokens WHERE lease = ?", (lease,))

    def move(self, group: MovedGroup) -> None:
        """Let the tokens of a lease that has ended wait for the scorer."""
        tokens = "(SELECT sum(length(payload)) / 8 + 1 FROM begun_tokens WHERE lease = l.id)"
        self._database.do(
            "UPDATE begun_groups SET state = 'unverified', position = ?, attempt = ?, reasons = ?, era = ?,"
            " version = ?, since = ? WHERE lease = ?",
            (*group[1:], group.lease),
        )
        self._database.do(
            f"INSERT INTO undecided SELECT era, version, party, ?, id, {tokens} FROM leases l WHERE id = ?",
            (group.since, group.lease),
        )

    def unverified(self, lease: bytes) -> MovedGroup | None:
        """Return a moved lease whose tokens wait for the scorer; None: it is none."""
        query = f"SELECT {_COLUMNS} FROM begun_groups WHERE lease = ? AND state = 'unverified'"
        row = self._database.one(query, (lease,))
        return None if row is None else MovedGroup(*row)

    def verified(self, lease: bytes, now: int) -> None:
        """Let a moved lease whose tokens hold wait for another node."""
        self._leave_scorer(lease)
        self._database.do("UPDATE begun_groups SET state = 'waiting', since = ? WHERE lease = ?", (now, lease))

    def refused(self, lease: bytes) -> None:
        """Drop a moved lease whose tokens do not hold."""
        self._leave_scorer(lease)
        self.drop(lease)

    def _leave_scorer(self, lease: bytes) -> None:
        self._database.do(
            "DELETE FROM undecided WHERE lease = ?1 AND (era, version, party, at) = (SELECT b.era, b.version, l.party,"
            " b.since FROM begun_groups b JOIN leases l ON l.id = b.lease WHERE b.lease = ?1)",
            (lease,),
        )

    def waiting_under(self, era: int, version: int) -> MovedGroup | None:
        """Return the moved lease of a version that waits longest for another node; None: none waits."""
        query = (
            f"SELECT {_COLUMNS} FROM begun_groups WHERE {_WAITING} AND era = ? AND version = ?"
            " ORDER BY since, lease LIMIT 1"
        )
        row = self._database.one(query, (era, version))
        return None if row is None else MovedGroup(*row)

    def waiting(self) -> list[MovedGroup]:
        """Return the moved leases that wait for another node."""
        rows = self._database.all(f"SELECT {_COLUMNS} FROM begun_groups WHERE {_WAITING}")
        return [MovedGroup(*row) for row in rows]

    def end(self, lease: bytes) -> None:
        """Note that a moved lease waits no longer: a second lease is given, or its position is returned."""
        self._database.do("UPDATE begun_groups SET state = 'over' WHERE lease = ?", (lease,))

    def oldest_in_use(self) -> tuple[int, int] | None:
        """Return (era, version) of the oldest version whose moved leases are not over."""
        return self._database.one(
            "SELECT era, version FROM begun_groups WHERE state IN ('unverified', 'waiting')"
            " ORDER BY era, version LIMIT 1"
        )
