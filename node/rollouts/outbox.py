"""The outbox: what this node made, kept until the run has given a final answer, and the answers, kept for good.

Rules
1. A submission is stored, fsynced, before it is first sent; it goes out as the very same bytes however often it is
   sent.
2. States: queued -> received (the coordinator has it, signed) -> final. Final is a Receipt of the ledger's key for just
   these bytes, or a Refusal that no repetition can change. A lease that the coordinator never received is queued again.
3. The bytes of a submission go when it is final; sealed Receipts stay. A Receipt is confirmed to the coordinator only
   once it is stored here.
4. At most `limit` submissions wait; then `full` is true and the node makes no more.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from node.errors import BadConfig, TryLater
from node.trust.trusted_set import Mismatch
from p2p.envelope import document_hash
from p2p.wire_types import decode
from protocol.leases import Receipt, Received
from protocol.requests import Refusal

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS submissions (
    lease BLOB PRIMARY KEY, state TEXT NOT NULL, hash BLOB NOT NULL, body BLOB, received BLOB, receipt BLOB,
    code TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', confirmed INTEGER NOT NULL DEFAULT 0,
    made INTEGER NOT NULL, decided INTEGER, root_serial INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_state ON submissions (state, made);
CREATE INDEX IF NOT EXISTS by_confirmed ON submissions (confirmed) WHERE receipt IS NOT NULL;
"""

_LATER_COLUMN: Final = "ALTER TABLE submissions ADD COLUMN root_serial INTEGER NOT NULL DEFAULT 0"
"""For the file of an earlier program; 0: stored before any Root of which this program knows."""

Open = Callable[[bytes, str], bytes]
"""(sealed, kind) -> payload, once the run's keys have signed it. Raises `BadSignature`, `Malformed`."""


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One submission. `state`: queued, received, accepted or refused. Times: milliseconds, this machine's clock.
    `root_serial`: of the newest Root held when the Receipt was stored; it decides what a later revocation touches."""

    lease: bytes
    state: str
    code: str
    reason: str
    made_at: int = msgspec.field(name="made")
    decided: int | None
    receipt: bytes | None
    root_serial: int


class Outbox:
    """Open one per node; every method is durable when it returns. Each may raise `TryLater`: no room on the disk."""

    def __init__(self, path: Path, *, node: bytes, limit: int) -> None:
        """`node`: this node's public key. Raises `BadConfig` where the file is damaged."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._node, self._limit = node, limit
        self._path = path
        try:
            with self._room():
                self._database = sqlite3.connect(path, isolation_level=None)
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._database.executescript(_SCHEMA)
                columns = {row[1] for row in self._database.execute("PRAGMA table_info(submissions)")}
                if "root_serial" not in columns:
                    self._database.execute(_LATER_COLUMN)
        except sqlite3.DatabaseError as error:
            raise BadConfig(f"{path} cannot be read ({error}): move it away; unanswered work in it is lost") from error

    def close(self) -> None:
        self._database.close()

    def put(self, lease: bytes, body: bytes, now: int) -> None:
        """Queue an encoded Submission; a second one for the same lease is dropped."""
        self._do(
            "INSERT OR IGNORE INTO submissions (lease, state, hash, body, made) VALUES (?, 'queued', ?, ?, ?)",
            (lease, document_hash(body), body, now),
        )

    def queued(self) -> tuple[bytes, bytes] | None:
        """(lease, body) of the oldest submission to be sent."""
        row = self._do("SELECT lease, body FROM submissions WHERE state = 'queued' ORDER BY made LIMIT 1").fetchone()
        return (bytes(row[0]), bytes(row[1])) if row else None

    def undecided(self, most: int) -> list[bytes]:
        """Leases whose submission was received and has no verdict, oldest first."""
        query = "SELECT lease FROM submissions WHERE state = 'received' ORDER BY made LIMIT ?"
        return [bytes(row[0]) for row in self._do(query, (most,))]

    def unconfirmed(self, most: int) -> list[bytes]:
        """Leases whose Receipt is stored here, and the coordinator does not know that yet."""
        query = "SELECT lease FROM submissions WHERE receipt IS NOT NULL AND confirmed = 0 LIMIT ?"
        return [bytes(row[0]) for row in self._do(query, (most,))]

    def waiting(self) -> int:
        """Submissions without a final answer."""
        query = "SELECT count(*) FROM submissions WHERE state IN ('queued', 'received')"
        return int(self._do(query).fetchone()[0])

    def counts(self) -> dict[str, int]:
        """Submissions by state."""
        return dict(self._do("SELECT state, count(*) FROM submissions GROUP BY state").fetchall())

    @property
    def full(self) -> bool:
        return self.waiting() >= self._limit

    def rows(self, most: int = -1) -> list[OutboxRow]:
        """Newest first. `most`: how many, -1 for all."""
        names = OutboxRow.__struct_encode_fields__
        query = f"SELECT {', '.join(names)} FROM submissions ORDER BY made DESC LIMIT ?"
        return [
            OutboxRow(**dict(zip(OutboxRow.__struct_fields__, row, strict=True))) for row in self._do(query, (most,))
        ]

    def stored_before(self, root_serial: int, since: int) -> list[OutboxRow]:
        """Submissions whose Receipt was stored from `since` on (ms, this machine's clock), under a Root before this."""
        names = OutboxRow.__struct_encode_fields__
        query = (
            f"SELECT {', '.join(names)} FROM submissions "
            "WHERE receipt IS NOT NULL AND root_serial < ? AND decided >= ? ORDER BY made"
        )
        return [
            OutboxRow(**dict(zip(OutboxRow.__struct_fields__, row, strict=True)))
            for row in self._do(query, (root_serial, since))
        ]

    def take_received(self, lease: bytes, sealed: bytes, open_: Open) -> None:
        """The coordinator's acknowledgement. Raises `BadSignature`, `Mismatch`, `Malformed`."""
        received = decode(open_(sealed, "received"), Received)
        if (received.lease, received.submission_hash) != (lease, self._hash(lease)):
            raise Mismatch("an acknowledgement of another submission")
        self._do(
            "UPDATE submissions SET state = 'received', received = ? WHERE lease = ? AND state = 'queued'",
            (sealed, lease),
        )

    def take_receipt(self, lease: bytes, sealed: bytes, open_: Open, now: int, root_serial: int = 0) -> Receipt:
        """The final answer. `root_serial`: of the newest Root held. Raises `BadSignature`, `Mismatch`, `Malformed`."""
        receipt = decode(open_(sealed, "receipt"), Receipt)
        if (receipt.lease, receipt.node, receipt.submission_hash) != (lease, self._node, self._hash(lease)):
            raise Mismatch("a Receipt of another submission or node")
        state = "accepted" if receipt.verdict == "accepted" else "refused"
        self._do(
            "UPDATE submissions SET state = ?, code = ?, reason = ?, receipt = ?, decided = coalesce(decided, ?), "
            "root_serial = ?, "
            "body = NULL WHERE lease = ?",
            (state, receipt.code, receipt.reason, sealed, now, root_serial, lease),
        )
        return receipt

    def take_refusal(self, lease: bytes, refusal: Refusal, now: int) -> None:
        """A Refusal without `retry_after`: final, without a Receipt."""
        self._do(
            "UPDATE submissions SET state = 'refused', code = ?, reason = ?, decided = ?, body = NULL "
            "WHERE lease = ? AND state IN ('queued', 'received')",
            (refusal.code, refusal.sentence, now, lease),
        )

    def requeue(self, leases: list[bytes]) -> None:
        """The coordinator never received these."""
        query = "UPDATE submissions SET state = 'queued' WHERE lease = ? AND state = 'received'"
        self._do_many(query, [(lease,) for lease in leases])

    def confirmed(self, leases: list[bytes]) -> None:
        """The coordinator knows that these Receipts are stored here."""
        self._do_many("UPDATE submissions SET confirmed = 1 WHERE lease = ?", [(lease,) for lease in leases])

    def _do(self, query: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        with self._room():
            return self._database.execute(query, values)

    def _do_many(self, query: str, values: list[tuple[bytes]]) -> None:
        with self._room():
            self._database.executemany(query, values)

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Translate what SQLite says of a full disk; what was stored before is whole."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise TryLater(f"the disk refuses {self._path} ({error}): free space there, or check it") from error
            raise

    def _hash(self, lease: bytes) -> bytes:
        row = self._do("SELECT hash FROM submissions WHERE lease = ?", (lease,)).fetchone()
        return bytes(row[0]) if row else b""
