"""The outbox: this node's submissions, stored until their final answers, and these answers, stored for good.

Rules
1. A submission is stored and fsynced before it is first sent, and every attempt sends the same bytes.
2. A submission is queued, then received (the coordinator signed its arrival), then final. The final answer is a Receipt
   of the ledger's key for exactly these bytes, or a Refusal that no retry can change. A submission that the coordinator
   does not have is queued again. The Receipt of a group in quarantine is replaced once by that which says how it ended.
3. The bytes of a submission are deleted with its final answer; sealed Receipts and the lengths of groups stay. A
   Receipt is confirmed to the coordinator only once it is stored here.
4. A lease is stored when it comes, until its submission is queued or it is given back: so a process that starts again
   knows which leases the one before it lost.
5. At most `limit` submissions wait for an answer; then `full` is true and the node generates no more.
6. Triggers keep the sums by outcome, so that no `status` reads all submissions that there ever were.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from echo2.node.durable_file import DurableFile
from echo2.node.trust.trusted_set import Mismatch
from echo2.p2p.envelope import decode_unverified, document_hash
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode
from echo2.protocol.group_weights import GroupLengths
from echo2.protocol.leases import Receipt, Received
from echo2.protocol.refusals import QUARANTINE
from echo2.protocol.requests import Refusal
from echo2.protocol.restored_logs import LogRestored
from echo2.runtime.units import DAY

SCHEMA: Final = """
CREATE TABLE submissions (
    lease BLOB PRIMARY KEY, state TEXT NOT NULL, hash BLOB NOT NULL, body BLOB, received BLOB, receipt BLOB,
    code TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', confirmed INTEGER NOT NULL DEFAULT 0,
    made INTEGER NOT NULL, decided INTEGER, root_serial INTEGER NOT NULL DEFAULT 0, entry INTEGER NOT NULL DEFAULT 0,
    proved INTEGER NOT NULL DEFAULT 0, lengths BLOB, weight INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE leases (id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE sums (
    state TEXT NOT NULL, code TEXT NOT NULL, groups INTEGER NOT NULL, weight INTEGER NOT NULL, PRIMARY KEY (state, code)
) WITHOUT ROWID;
CREATE TRIGGER submitted AFTER INSERT ON submissions BEGIN
    DELETE FROM leases WHERE id = NEW.lease;
    INSERT INTO sums VALUES (NEW.state, NEW.code, 1, NEW.weight)
        ON CONFLICT DO UPDATE SET groups = groups + 1, weight = weight + excluded.weight;
END;
CREATE TRIGGER moved AFTER UPDATE OF state, code, weight ON submissions BEGIN
    UPDATE sums SET groups = groups - 1, weight = weight - OLD.weight WHERE state = OLD.state AND code = OLD.code;
    INSERT INTO sums VALUES (NEW.state, NEW.code, 1, NEW.weight)
        ON CONFLICT DO UPDATE SET groups = groups + 1, weight = weight + excluded.weight;
    DELETE FROM sums WHERE groups = 0;
END;
CREATE INDEX by_state ON submissions (state, made);
CREATE INDEX by_outcome ON submissions (state, code);
CREATE INDEX without_entry ON submissions (lease) WHERE proved > 1;
CREATE INDEX in_quarantine ON submissions (decided) WHERE code = 'quarantine';
CREATE INDEX by_confirmed ON submissions (confirmed) WHERE receipt IS NOT NULL;
CREATE INDEX unproved ON submissions (entry) WHERE receipt IS NOT NULL AND entry > 0 AND proved = 0;
CREATE INDEX unproved_ends ON submissions (decided) WHERE receipt IS NOT NULL AND entry = 0 AND proved = 0;
"""

LOST_RECEIPT: Final = 2
CLAIM_RECEIPT: Final = 3
"""Of the column `proved`, as `LOST_RECEIPT`."""
ASKED_DAYS: Final = 7
"""Days for which a node asks how a quarantine ended: a restored ledger may not say."""

Open = Callable[[bytes, str], bytes]
"""(sealed bytes, kind) -> payload, verified by the run's keys. Raises `BadSignature`, `Malformed`."""


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One submission. `state`: queued, received, accepted or refused. Times: milliseconds, this machine's clock.
    `root_serial`: serial number of the newest Root known when the Receipt was stored; it decides which Receipts a later
    revocation affects. `entry`: entry of the Receipt in the ledger; 0: none of its own. `proved`: 1 once it is proved
    to be there, `LOST_RECEIPT` once another entry is proved to stand in its place, `CLAIM_RECEIPT` once a restored log
    lacks its entry. `lengths`: lengths of the group, an encoded GroupLengths."""

    lease: bytes
    state: str
    code: str
    reason: str
    made_at: int = msgspec.field(name="made")
    decided: int | None
    receipt: bytes | None
    root_serial: int
    entry: int
    proved: int
    lengths: bytes | None = None


class UnprovedCounts(NamedTuple):
    """Receipts without a proof. `missing`: those that may still get one. `too_old`: those whose end of the lease the
    coordinator no longer has."""

    missing: int
    too_old: int


class RefusedGroups(NamedTuple):
    """The refused groups of one code. `reason`: reason of one of them, a sentence."""

    code: str
    reason: str
    groups: int


class Outbox:
    """The submissions and answers of one node, in SQLite: every change is durable when its method returns. Each method
    may raise `TryLater`: the disk is full or fails."""

    def __init__(self, path: Path, *, node: bytes, limit: int) -> None:
        """`node`: this node's public key. `limit`: rule 5's. Raises `BadConfig` if the file is damaged."""
        self._node, self._limit = node, limit
        self._file = DurableFile(path, SCHEMA, lost="unanswered work in it is lost")

    @property
    def peer(self) -> str:
        """This node's peer id."""
        return peer_id(self._node)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def put(self, lease: bytes, body: bytes, now: int, lengths: GroupLengths | None = None) -> None:
        """Queue an encoded Submission; ignore a second one for the same lease. `now`: ms, this machine's clock.
        `lengths`: lengths of the group."""
        known = None if lengths is None else msgspec.msgpack.encode(lengths)
        self._file.do(
            "INSERT OR IGNORE INTO submissions (lease, state, hash, body, made, lengths) "
            "VALUES (?, 'queued', ?, ?, ?, ?)",
            (lease, document_hash(body), body, now, known),
        )

    def open_lease(self, lease: bytes) -> None:
        """Store a lease that came (rule 4)."""
        self._file.do("INSERT OR IGNORE INTO leases (id) VALUES (?)", (lease,))

    def open_leases(self) -> list[bytes]:
        """Return the leases that are neither submitted nor given back."""
        return [bytes(row[0]) for row in self._file.do("SELECT id FROM leases")]

    def close_leases(self, leases: Sequence[bytes]) -> None:
        """Forget leases that are given back."""
        self._file.do_many("DELETE FROM leases WHERE id = ?", [(lease,) for lease in leases])

    def next_queued(self, beside: Collection[bytes] = ()) -> tuple[bytes, bytes] | None:
        """Return (lease, body) of the oldest queued submission that is not among `beside`; None without one."""
        leases = self._file.do("SELECT lease FROM submissions WHERE state = 'queued' ORDER BY made")
        lease = next((row[0] for row in leases if row[0] not in beside), None)
        if lease is None:
            return None
        (body,) = self._file.do("SELECT body FROM submissions WHERE lease = ?", (lease,)).fetchone()
        return bytes(lease), bytes(body)

    def unsent(self) -> int:
        """Return the number of submissions that the coordinator has not received."""
        return int(self._file.do("SELECT count(*) FROM submissions WHERE state = 'queued'").fetchone()[0])

    def list_undecided(self, most: int) -> list[bytes]:
        """Return at most `most` leases whose submission was received and has no verdict yet, oldest first."""
        query = "SELECT lease FROM submissions WHERE state = 'received' ORDER BY made LIMIT ?"
        return [bytes(row[0]) for row in self._file.do(query, (most,))]

    def quarantine_ended(self, now: int, most: int) -> list[bytes]:
        """Return at most `most` leases of groups in quarantine whose day (UTC) has ended, at most `ASKED_DAYS` days
        ago. `now`: ms, this machine's clock."""
        query = "SELECT lease FROM submissions WHERE code = 'quarantine' AND decided < ? AND decided >= ? LIMIT ?"
        today = now // DAY * DAY
        return [bytes(row[0]) for row in self._file.do(query, (today, today - ASKED_DAYS * DAY, most))]

    def unconfirmed_leases(self, most: int) -> list[bytes]:
        """Return at most `most` leases whose Receipt is stored here and not yet confirmed to the coordinator."""
        query = "SELECT lease FROM submissions WHERE receipt IS NOT NULL AND confirmed = 0 LIMIT ?"
        return [bytes(row[0]) for row in self._file.do(query, (most,))]

    def unproved_receipts(self, size: int, most: int) -> list[Receipt]:
        """Return at most `most` Receipts, lowest entry first, whose entries are among the first `size` of the ledger
        and are not proved yet."""
        query = (
            "SELECT receipt FROM submissions WHERE receipt IS NOT NULL AND entry > 0 AND proved = 0 AND entry <= ? "
            "ORDER BY entry LIMIT ?"
        )
        return [_receipt(sealed) for (sealed,) in self._file.do(query, (size, most)).fetchall()]

    def unproved_ends(self, since: int, most: int) -> list[Receipt]:
        """Return at most `most` Receipts, oldest first, that name entry 0, are not proved yet, and were stored at or
        after `since` (ms, this machine's clock)."""
        query = (
            "SELECT receipt FROM submissions WHERE receipt IS NOT NULL AND entry = 0 AND proved = 0 AND decided >= ? "
            "ORDER BY decided LIMIT ?"
        )
        receipts = [_receipt(sealed) for (sealed,) in self._file.do(query, (since, most)).fetchall()]
        for one in receipts:
            if one.entry:  # stored by a program that did not know the column
                self._file.do("UPDATE submissions SET entry = ? WHERE lease = ?", (one.entry, one.lease))
        return [one for one in receipts if not one.entry]

    def unproved_since(self) -> tuple[int, int | None]:
        """Return the number of Receipts that name an entry and are not proved yet, and when the oldest of them was
        stored (ms, this machine's clock)."""
        query = "SELECT count(*), min(decided) FROM submissions WHERE receipt IS NOT NULL AND entry > 0 AND proved = 0"
        count, oldest = self._file.do(query).fetchone()
        return int(count), oldest

    def unproved_counts(self, since: int) -> "UnprovedCounts":
        """Return the numbers of Receipts without a proof. `since`: ms, this machine's clock, before which one that
        names entry 0 is too old for a proof."""
        where = "FROM submissions WHERE receipt IS NOT NULL AND proved = 0 AND entry"
        (missing,) = self._file.do(f"SELECT count(*) {where} > 0").fetchone()
        recent, old = self._file.do(
            f"SELECT count(*) FILTER (WHERE decided >= ?1), count(*) FILTER (WHERE decided < ?1) {where} = 0", (since,)
        ).fetchone()
        return UnprovedCounts(missing + recent, old)

    def mark_proved(self, leases: list[bytes]) -> None:
        """Record that the Receipts of these leases are proved to be in the ledger."""
        self._file.do_many("UPDATE submissions SET proved = 1 WHERE lease = ?", [(lease,) for lease in leases])

    def mark_lost(self, leases: list[bytes]) -> None:
        """Record that the ledger has another entry in the place of these leases' Receipts."""
        self._file.do_many(
            "UPDATE submissions SET proved = ? WHERE lease = ?", [(LOST_RECEIPT, lease) for lease in leases]
        )

    def prove_again(self, leases: Iterable[bytes]) -> None:
        """Record that the Receipts of these leases are not proved any more: the head was in doubt."""
        self._file.do_many("UPDATE submissions SET proved = 0 WHERE lease = ?", [(lease,) for lease in leases])

    def claim(self, logs: Sequence[LogRestored], uncovered: Mapping[bytes, int]) -> list[bytes]:
        """Record what follows from restored logs (protocol/restored_logs.py); return the leases of claims: receipts of
        entries behind those restored, written before that (by the run's clock). `uncovered`: the entries of receipts,
        by lease, that were proved in an earlier log alone. Of these, too, those behind are claims, and the others have
        to be proved again."""
        least = min(one.size for one in logs)
        query = "SELECT lease, receipt FROM submissions WHERE receipt IS NOT NULL AND entry > ?"
        rows = [(bytes(lease), _receipt(sealed)) for lease, sealed in self._file.do(query, (least,)).fetchall()]
        claims = {
            lease
            for lease, receipt in rows
            if any(receipt.entry > one.size and receipt.at < one.restored for one in logs)
        }
        claims |= {lease for lease, entry in uncovered.items() if entry > least}
        marks = [(CLAIM_RECEIPT, lease) for lease in sorted(claims)] + [
            (0, lease) for lease in uncovered.keys() - claims
        ]
        self._file.do_many("UPDATE submissions SET proved = ? WHERE lease = ?", marks)
        return sorted(claims)

    def lost_leases(self) -> list[bytes]:
        """Return the leases of the receipts that the ledger lacks: those that are lost, and claims."""
        query = "SELECT lease FROM submissions WHERE proved > 1 ORDER BY lease"
        return [bytes(lease) for (lease,) in self._file.do(query)]

    def waiting(self) -> int:
        """Return the number of submissions without a final answer."""
        query = "SELECT count(*) FROM submissions WHERE state IN ('queued', 'received')"
        return int(self._file.do(query).fetchone()[0])

    def counts(self) -> dict[str, int]:
        """Return the number of submissions by state."""
        return dict(self._file.do("SELECT state, sum(groups) FROM sums GROUP BY state").fetchall())

    def work(self) -> int:
        """Return the work of the accepted groups, milli-RE."""
        query = "SELECT coalesce(sum(weight), 0) FROM sums WHERE state = 'accepted'"
        return int(self._file.do(query).fetchone()[0])

    def refused_by_reason(self) -> list[RefusedGroups]:
        """Return the refused groups by code, most groups first."""
        reason = "SELECT reason FROM submissions WHERE state = 'refused' AND code = sums.code LIMIT 1"
        query = f"SELECT code, ({reason}), groups FROM sums WHERE state = 'refused' ORDER BY groups DESC"
        return [RefusedGroups(*row) for row in self._file.do(query)]

    @property
    def room(self) -> int:
        """Number of further submissions that may wait for an answer."""
        return max(0, self._limit - self.waiting())

    @property
    def full(self) -> bool:
        """Whether `limit` submissions wait for an answer."""
        return not self.room

    def rows(self, most: int = -1) -> list[OutboxRow]:
        """Return the newest `most` submissions, newest first; -1 for all."""
        return self._select("ORDER BY made DESC LIMIT ?", (most,))

    def quarantine_by_day(self, now: int) -> dict[int, tuple[int, int]]:
        """Return, by the end of the day (UTC, ms), the number of groups in quarantine and their weight in milli-RE.
        `now`: ms by the run's clock; days that have ended are left out, as the coordinator has settled them."""
        days: dict[int, tuple[int, int]] = {}
        where = "WHERE state = 'accepted' AND code = ? AND decided > ?"
        for row in self._select(where, (QUARANTINE, now - 2 * DAY)):
            receipt = decode(decode_unverified(row.receipt or b"").payload, Receipt)
            until = (receipt.at // DAY + 1) * DAY
            if until > now:
                groups, weight = days.get(until, (0, 0))
                days[until] = groups + 1, weight + receipt.weight
        return days

    def stored_before(self, root_serial: int, since: int) -> list[OutboxRow]:
        """Return the submissions whose Receipt was stored at or after `since` (ms, this machine's clock), under a Root
        before `root_serial`."""
        which = "WHERE receipt IS NOT NULL AND root_serial < ? AND decided >= ? ORDER BY made"
        return self._select(which, (root_serial, since))

    def take_received(self, lease: bytes, sealed: bytes, open_: Open) -> None:
        """Store the coordinator's acknowledgement of a submission. No bytes: it was refused at once, and its Receipt is
        there. Raises `BadSignature`, `Mismatch`, `Malformed`."""
        if sealed:
            received = decode(open_(sealed, "received"), Received)
            if (received.lease, received.submission_hash) != (lease, self._hash(lease)):
                raise Mismatch("the acknowledgement is for another submission")
        self._file.do(
            "UPDATE submissions SET state = 'received', received = ? WHERE lease = ? AND state = 'queued'",
            (sealed or None, lease),
        )

    def take_receipt(self, lease: bytes, sealed: bytes, open_: Open, now: int, root_serial: int = 0) -> Receipt:
        """Store a Receipt, the final answer. `root_serial`: serial number of the newest Root known. Raises
        `BadSignature`, `Mismatch`, `Malformed`."""
        receipt = decode(open_(sealed, "receipt"), Receipt)
        if (receipt.lease, receipt.node, receipt.submission_hash) != (lease, self._node, self._hash(lease)):
            raise Mismatch("the Receipt is for another submission or node")
        state = "accepted" if receipt.verdict == "accepted" else "refused"
        self._file.do(
            "UPDATE submissions SET state = ?, code = ?, reason = ?, receipt = ?, decided = coalesce(decided, ?), "
            "root_serial = ?, entry = ?, weight = ?, body = NULL WHERE lease = ?",
            (state, receipt.code, receipt.reason, sealed, now, root_serial, receipt.entry, receipt.weight, lease),
        )
        return receipt

    def take_refusal(self, lease: bytes, refusal: Refusal, now: int) -> None:
        """Store a Refusal without `retry_after`: final, without a Receipt."""
        self._file.do(
            "UPDATE submissions SET state = 'refused', code = ?, reason = ?, decided = ?, body = NULL "
            "WHERE lease = ? AND state IN ('queued', 'received')",
            (refusal.code, refusal.sentence, now, lease),
        )

    def requeue(self, leases: list[bytes]) -> None:
        """Queue again the submissions that the coordinator does not have."""
        query = "UPDATE submissions SET state = 'queued' WHERE lease = ? AND state = 'received'"
        self._file.do_many(query, [(lease,) for lease in leases])

    def mark_confirmed(self, leases: list[bytes]) -> None:
        """Record that the Receipts of these leases were confirmed to the coordinator."""
        self._file.do_many("UPDATE submissions SET confirmed = 1 WHERE lease = ?", [(lease,) for lease in leases])

    def _select(self, which: str, values: tuple[object, ...]) -> list[OutboxRow]:
        """Return rows. `which`: the clauses of the query after the table's name."""
        columns = ", ".join(OutboxRow.__struct_encode_fields__)
        rows = self._file.do(f"SELECT {columns} FROM submissions {which}", values)
        return [OutboxRow(**dict(zip(OutboxRow.__struct_fields__, row, strict=True))) for row in rows]

    def _hash(self, lease: bytes) -> bytes:
        row = self._file.do("SELECT hash FROM submissions WHERE lease = ?", (lease,)).fetchone()
        return bytes(row[0]) if row else b""


def count_waiting(folder: Path) -> int:
    """Return how many submissions in the folder of a run have no final answer."""
    path = folder / "outbox.sqlite"
    if not path.exists():
        return 0
    with closing(Outbox(path, node=bytes(32), limit=1)) as outbox:
        return outbox.waiting()


def _receipt(sealed: bytes) -> Receipt:
    """Decode a stored Receipt, which was verified before it was stored."""
    return decode(decode_unverified(bytes(sealed)).payload, Receipt)
