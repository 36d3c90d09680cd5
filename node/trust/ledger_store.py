"""The heads of the ledger that a node has taken, the proofs of its receipts, and a fork, if it has seen one, on disk.

Rules
1. A head is durable before it is used. Heads stay for good, and so do proofs: they are the node's evidence.
2. The bytes were verified before they were stored; `node/trust/ledger_witness.py` says how.
3. A fork is stored once. A node with a stored fork takes no lease. One that is settled is kept as a record, the first
   `MOST_SETTLED` of them. Heads that go for it take the proofs under them along, to be fetched again.
4. A restored log is taken in one change: heads that it lacks move to `former_heads`; proofs under them of entries that
   it lacks move to `claims`, and those of other entries go, to be fetched again under a head of the new log.
5. The close of an epoch has a row per paid node. So of closes that were proved the newest `MOST_CLOSES` bytes stay; of
   older ones the node's own row stays, as it was proved. The ledger's export has the others.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from echo2.node.durable_file import DurableFile
from echo2.node.trust.ledger_witness import EndedProof, LedgerFork, ReceiptProof, WitnessedHead
from echo2.node.trust.pay_witness import OwnEpoch
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.ledger_heads import EndProof, EntryProof, GrownHead, HeadReference, LedgerHead, Proof, payload_hash
from echo2.protocol.restored_logs import LogChain, SealedLog, chain_of

MOST_CLOSES: Final = 128 << 20
SCHEMA: Final = """
CREATE TABLE heads (
    number INTEGER PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL, sealed BLOB NOT NULL,
    root_serial INTEGER NOT NULL
);
CREATE INDEX heads_by_size ON heads (size);
CREATE TABLE proofs (lease BLOB PRIMARY KEY, size INTEGER NOT NULL, proof BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE costs (
    entry INTEGER PRIMARY KEY, size INTEGER NOT NULL, proof BLOB NOT NULL, root_serial INTEGER NOT NULL
);
CREATE TABLE consistency (number INTEGER PRIMARY KEY, proof BLOB NOT NULL);
CREATE TABLE ended (entry INTEGER PRIMARY KEY, size INTEGER NOT NULL, proof BLOB NOT NULL);
CREATE TABLE ends (lease BLOB PRIMARY KEY, entry INTEGER NOT NULL, proof BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE lost (lease BLOB PRIMARY KEY, size INTEGER NOT NULL, proof BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE epochs (
    epoch INTEGER PRIMARY KEY, asked INTEGER NOT NULL DEFAULT 0, size INTEGER, closed BLOB
);
CREATE TABLE paid (epoch INTEGER PRIMARY KEY, size INTEGER NOT NULL, own BLOB NOT NULL);
CREATE TABLE logs (
    serial INTEGER PRIMARY KEY, sealed BLOB NOT NULL, proof BLOB NOT NULL, root_serial INTEGER NOT NULL
);
CREATE TABLE begun (number INTEGER PRIMARY KEY, proof BLOB NOT NULL);
CREATE TABLE former_heads (
    log BLOB NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, root BLOB NOT NULL, sealed BLOB NOT NULL,
    root_serial INTEGER NOT NULL, PRIMARY KEY (log, number)
) WITHOUT ROWID;
CREATE TABLE claims (
    lease BLOB PRIMARY KEY, size INTEGER NOT NULL, proof BLOB NOT NULL, ended BLOB
) WITHOUT ROWID;
CREATE TABLE forks (one BLOB NOT NULL, other BLOB NOT NULL, reason TEXT NOT NULL);
CREATE TABLE settled_forks (one BLOB NOT NULL, other BLOB NOT NULL, reason TEXT NOT NULL);
"""


def fork_sentence(fork: str) -> str:
    """Return the words about a stored fork for the owner."""
    return (
        f"{fork}. The two are kept as evidence; work for this run has ended: ask its operator, and show them to "
        "others. A later start goes on if a Root has revoked the key of a head among them by then"
    )


_proof = msgspec.msgpack.Decoder(list[bytes])
_own = msgspec.msgpack.Decoder(OwnEpoch)
_NO_PROOF: Final = msgspec.msgpack.encode([])
_HEADS_BEHIND_QUERY: Final = "SELECT number, size, root, sealed, root_serial FROM heads WHERE number > ?"
_FORGET_QUERY: Final = (
    "DELETE FROM ends WHERE entry IN (SELECT entry FROM ended WHERE size > ?)",
    *(f"DELETE FROM {table} WHERE size > ?" for table in ("proofs", "ended", "costs", "lost", "paid")),
    "UPDATE epochs SET size = NULL, closed = NULL WHERE size > ?",
)
"""Delete the documents beside heads that go, by the size of their trees (rules 3 and 4)."""
MOST_SETTLED: Final = 16
"""Forks that are kept as records (rule 3)."""


class LedgerStore:
    """The file. Each method may raise `TryLater`: the disk is full or fails."""

    def __init__(self, path: Path) -> None:
        """Raises `BadConfig` if the file is damaged."""
        self._proved: int | None = None
        """Number of receipts with a proof; None: not counted since proofs went."""
        self._file = DurableFile(path, SCHEMA, lost="the heads of the ledger in it, and the proofs, are fetched again")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def newest(self) -> WitnessedHead | None:
        """Return the newest head."""
        return self._head("ORDER BY number DESC LIMIT 1")

    def reference(self) -> HeadReference | None:
        """Return the newest head as this node tells it to the coordinator; None: it has none."""
        newest = self.newest()
        return None if newest is None else HeadReference(newest.head.number, hashlib.sha256(newest.sealed).digest())

    def heads_after(self, after: int | None, most: int) -> list[GrownHead]:
        """Return at most `most` heads after number `after`, each with its consistency proof, as far as these are stored
        without a gap; None: the newest alone."""
        if after is None:
            newest = self.newest()
            return [] if newest is None else [GrownHead(sealed=newest.sealed)]
        query = (
            "SELECT heads.number, sealed, consistency.proof, begun.proof FROM heads JOIN consistency USING (number) "
            "LEFT JOIN begun USING (number) WHERE heads.number > ? ORDER BY heads.number LIMIT ?"
        )
        rows = enumerate(self._file.do(query, (after, most)).fetchall(), start=after + 1)
        return [
            GrownHead(
                sealed=bytes(sealed), consistency=_proof.decode(proof), restored=_proof.decode(restored or _NO_PROOF)
            )
            for expected, (number, sealed, proof, restored) in rows
            if number == expected
        ]

    def like(self, head: LedgerHead) -> list[WitnessedHead]:
        """Return the heads that have a head's number or its size, also those that a restored log lacks."""
        alike = self._head("WHERE number = ?", head.number), self._head("WHERE size = ?", head.size)
        query = "SELECT sealed FROM former_heads WHERE log = ? AND (number = ? OR size = ?)"
        rows = self._file.do(query, (head.log, head.number, head.size)).fetchall()
        return [*(one for one in alike if one is not None), *(_stored_head(sealed) for (sealed,) in rows)]

    def around(self, number: int) -> tuple[WitnessedHead | None, WitnessedHead | None]:
        """Return the newest head up to number `number`, and the first behind it."""
        return (
            self._head("WHERE number <= ? ORDER BY number DESC LIMIT 1", number),
            self._head("WHERE number > ? ORDER BY number LIMIT 1", number),
        )

    def logs(self, run: bytes) -> LogChain:
        """Return the logs that this node took. `run`: its id."""
        return chain_of(run, [sealed for sealed, _ in self.stored_logs()])

    def log(self) -> bytes | None:
        """Return the id of the newest log; None: it is the run's first."""
        row = self._file.do("SELECT sealed FROM logs ORDER BY serial DESC LIMIT 1").fetchone()
        return None if row is None else payload_hash(bytes(row[0]))

    def following(self, serial: int) -> tuple[list[bytes], list[bytes]]:
        """Return the documents of restored logs after `serial`, and the proof that came with the last one."""
        rows = self._file.do("SELECT sealed, proof FROM logs WHERE serial > ? ORDER BY serial", (serial,)).fetchall()
        return [bytes(sealed) for sealed, _ in rows], _proof.decode(rows[-1][1]) if rows else []

    def stored_logs(self) -> list[tuple[bytes, int]]:
        """Return every document of a restored log, in order, with the serial of the newest Root known when it was
        stored."""
        rows = self._file.do("SELECT sealed, root_serial FROM logs ORDER BY serial")
        return [(bytes(sealed), serial) for sealed, serial in rows]

    def uncovered_receipts(self, number: int) -> dict[bytes, int]:
        """Return the receipts that are proved under heads behind number `number` (rules 3 and 4), by lease, each with
        the number of the entry."""
        reach = (self._reach(number),)
        query = "SELECT lease, proof FROM proofs WHERE size > ?1 UNION SELECT lease, proof FROM lost WHERE size > ?1"
        proofs = self._file.do(query, reach).fetchall()
        entries = {bytes(lease): decode(bytes(proof), EntryProof).entry for lease, proof in proofs}
        ends = self._file.do("SELECT lease, entry FROM ends JOIN ended USING (entry) WHERE size > ?", reach).fetchall()
        return entries | {bytes(lease): int(entry) for lease, entry in ends}

    def take_logs(self, begun: Sequence[SealedLog], root_serial: int, proof: Proof) -> None:
        """Take restored logs (rule 4). `root_serial`: serial number of the newest Root that is known now. `proof`: that
        came."""
        number, size = least_number(begun), min(one.document.size for one in begun)
        reach = self._reach(number)
        query = (
            "SELECT lease, size, proof, NULL FROM proofs WHERE size > ?1 "
            "UNION SELECT lease, size, ended.proof, ends.proof FROM ends JOIN ended USING (entry) WHERE size > ?1"
        )
        rows = self._file.do(query, (reach,)).fetchall()
        claims = [row for row in rows if decode(bytes(row[2]), EntryProof).entry > size]
        with self._file.one_change():
            for one in begun:
                row = (one.document.serial, one.sealed, msgspec.msgpack.encode(proof), root_serial)
                self._file.do("INSERT INTO logs VALUES (?, ?, ?, ?)", row)
            for claim in claims:
                self._file.do("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?)", claim)
            for place, covers, root, sealed, serial in self._file.do(_HEADS_BEHIND_QUERY, (number,)).fetchall():
                former = (_stored_head(sealed).head.log, place, covers, root, sealed, serial)
                self._file.do("INSERT OR REPLACE INTO former_heads VALUES (?, ?, ?, ?, ?, ?)", former)
            self._forget(number)

    def drop_behind(self, number: int) -> None:
        """Forget heads behind number `number`, and the proofs under them (rule 3)."""
        with self._file.one_change():
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._proved = None
        reach = self._reach(number)
        for change in _FORGET_QUERY:
            self._file.do(change, (reach,))
        for table in ("heads", "consistency", "begun"):
            self._file.do(f"DELETE FROM {table} WHERE number > ?", (number,))

    def _reach(self, number: int) -> int:
        """Return the number of entries under the heads up to number `number`."""
        return int(self._file.do("SELECT coalesce(max(size), 0) FROM heads WHERE number <= ?", (number,)).fetchone()[0])

    def claims(self) -> Mapping[bytes, ReceiptProof | EndedProof]:
        """Return the proofs of claims, by lease: under heads that a restored log lacks."""
        claims: dict[bytes, ReceiptProof | EndedProof] = {}
        for lease, size, proof, ended in self._file.do("SELECT lease, size, proof, ended FROM claims"):
            proved = ReceiptProof(decode(proof, EntryProof), size)
            claims[bytes(lease)] = proved if ended is None else EndedProof(decode(ended, EndProof), proved)
        return claims

    def former_heads(self) -> list[tuple[bytes, int]]:
        """Return every sealed head that a restored log lacks, with the serial of the newest Root known when it was
        stored."""
        rows = self._file.do("SELECT sealed, root_serial FROM former_heads ORDER BY log, number")
        return [(bytes(sealed), serial) for sealed, serial in rows]

    def root_of(self, size: int) -> bytes | None:
        """Return the root of the head of `size` entries; None without one."""
        row = self._file.do("SELECT root FROM heads WHERE size = ?", (size,)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, one: WitnessedHead, root_serial: int, grown: GrownHead | None = None) -> None:
        """Store a head. `root_serial`: serial number of the newest Root that is known now. `grown`: the proofs that
        came with it, for other peers; None: it came without."""
        if grown is not None:
            row: tuple[object, ...] = (one.head.number, msgspec.msgpack.encode(grown.consistency))
            self._file.do("INSERT OR REPLACE INTO consistency VALUES (?, ?)", row)
        if grown is not None and grown.restored:
            row = (one.head.number, msgspec.msgpack.encode(grown.restored))
            self._file.do("INSERT OR REPLACE INTO begun VALUES (?, ?)", row)
        row = (one.head.number, one.head.size, one.head.root, one.sealed, root_serial)
        self._file.do("INSERT INTO heads VALUES (?, ?, ?, ?, ?)", row)

    def put_proof(self, lease: bytes, proved: ReceiptProof) -> None:
        """Store the proof of a lease's receipt."""
        self._put_proved("proofs", (lease, proved.size, encode(proved.proof)))

    def _put_proved(self, table: str, row: tuple[bytes, int, bytes]) -> None:
        before = self._file.do(f"SELECT 1 FROM {table} WHERE lease = ?", row[:1]).fetchone()
        self._file.do(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", row)
        if before is None and self._proved is not None:
            self._proved += 1

    def proofs(self) -> Mapping[bytes, ReceiptProof]:
        """Return the proofs of all receipts, by lease."""
        rows = self._file.do("SELECT lease, size, proof FROM proofs")
        return {bytes(lease): ReceiptProof(decode(proof, EntryProof), size) for lease, size, proof in rows}

    def put_costs(self, proved: ReceiptProof, root_serial: int) -> None:
        """Store the proof of a `costs.set`. `root_serial`: serial number of the newest Root that is known now."""
        row = (proved.proof.entry, proved.size, encode(proved.proof), root_serial)
        self._file.do("INSERT OR REPLACE INTO costs VALUES (?, ?, ?, ?)", row)

    def has_costs(self, entry: int) -> bool:
        """Tell whether the proof of a `costs.set` is stored."""
        return self._file.do("SELECT 1 FROM costs WHERE entry = ?", (entry,)).fetchone() is not None

    def costs(self) -> list[tuple[ReceiptProof, int]]:
        """Return the proof of every `costs.set`, with the serial of the newest Root known when it was stored."""
        rows = self._file.do("SELECT size, proof, root_serial FROM costs ORDER BY entry")
        return [(ReceiptProof(decode(proof, EntryProof), size), serial) for size, proof, serial in rows]

    def want_epochs(self, epochs: Iterable[int]) -> None:
        """Record epochs in which this node was accepted: the proofs of their closes are wanted."""
        self._file.do_many("INSERT OR IGNORE INTO epochs (epoch) VALUES (?)", [(epoch,) for epoch in epochs])

    def wanted_epochs(self, most: int) -> list[int]:
        """Return at most `most` epochs whose close is not proved yet, those first that were asked for least often; from
        now on they count as asked for once more."""
        query = "SELECT epoch FROM epochs WHERE closed IS NULL ORDER BY asked, epoch LIMIT ?"
        epochs = [int(epoch) for (epoch,) in self._file.do(query, (most,)).fetchall()]
        self._file.do_many("UPDATE epochs SET asked = asked + 1 WHERE epoch = ?", [(epoch,) for epoch in epochs])
        return epochs

    def put_epoch(self, epoch: int, closed: ReceiptProof, own: OwnEpoch | None, most: int = MOST_CLOSES) -> None:
        """Store the proof of an epoch's close. `own`: what follows from it; None: nothing does, and it stays as it is.
        `most`: bytes (rule 5)."""
        row = (closed.size, encode(closed.proof), epoch)
        with self._file.one_change():
            self._file.do("UPDATE epochs SET size = ?, closed = ? WHERE epoch = ?", row)
            if own is not None:
                paid = (epoch, closed.size, msgspec.msgpack.encode(own))
                self._file.do("INSERT OR REPLACE INTO paid VALUES (?, ?, ?)", paid)
            for old in self._beyond(most):
                self._file.do("UPDATE epochs SET closed = x'' WHERE epoch = ?", (old,))

    def _beyond(self, most: int) -> list[int]:
        """Return the epochs whose close is older than the newest `most` bytes, and proved (rule 5)."""
        query = (
            "SELECT epoch, sum(length(closed)) OVER (ORDER BY epoch DESC) AS bytes FROM epochs JOIN paid USING (epoch) "
            "WHERE length(closed) > 0"
        )
        rows = self._file.do(f"SELECT epoch FROM ({query}) WHERE bytes > ?", (most,)).fetchall()
        return [int(epoch) for (epoch,) in rows]

    def paid_epochs(self) -> list[OwnEpoch]:
        """Return the epochs of which only this node's own row is here (rule 5)."""
        rows = self._file.do("SELECT own FROM epochs JOIN paid USING (epoch) WHERE length(closed) = 0")
        return [_own.decode(own) for (own,) in rows]

    def epochs(self) -> Mapping[int, ReceiptProof]:
        """Return the proofs of closes, by epoch, of those that are here."""
        rows = self._file.do("SELECT epoch, size, closed FROM epochs WHERE length(closed) > 0")
        return {epoch: ReceiptProof(decode(closed, EntryProof), size) for epoch, size, closed in rows}

    def put_lost(self, lease: bytes, proved: ReceiptProof) -> None:
        """Store the proof that the ledger has another entry in the place of a lease's receipt."""
        self._file.do("INSERT OR REPLACE INTO lost VALUES (?, ?, ?)", (lease, proved.size, encode(proved.proof)))

    def lost_leases(self) -> list[bytes]:
        """Return the leases of the receipts in whose place the ledger has another entry."""
        return [bytes(lease) for (lease,) in self._file.do("SELECT lease FROM lost ORDER BY lease")]

    def put_end(self, lease: bytes, proved: EndedProof) -> None:
        """Store the proof of a receipt that names entry 0. The proof of the entry is stored once for all its ends."""
        entry = proved.entry
        self._file.do(
            "INSERT OR REPLACE INTO ended VALUES (?, ?, ?)", (entry.proof.entry, entry.size, encode(entry.proof))
        )
        self._put_proved("ends", (lease, proved.end.entry, encode(proved.end)))

    def ends(self) -> Mapping[bytes, EndedProof]:
        """Return the proofs of all receipts that name entry 0, by lease."""
        rows = self._file.do("SELECT entry, size, proof FROM ended")
        entries = {entry: ReceiptProof(decode(proof, EntryProof), size) for entry, size, proof in rows}
        rows = self._file.do("SELECT lease, entry, proof FROM ends")
        return {bytes(lease): EndedProof(decode(proof, EndProof), entries[entry]) for lease, entry, proof in rows}

    def count_proved(self) -> int:
        """Return the number of receipts with a proof."""
        if self._proved is None:
            query = "SELECT (SELECT count(*) FROM proofs) + (SELECT count(*) FROM ends)"
            self._proved = int(self._file.do(query).fetchone()[0])
        return self._proved

    def put_fork(self, fork: LedgerFork) -> None:
        """Store the evidence of a fork (rule 3)."""
        if self.fork() is None:
            self._file.do("INSERT INTO forks VALUES (?, ?, ?)", (fork.one.sealed, fork.other.sealed, str(fork)))

    def fork(self) -> str | None:
        """Return the sentence of the fork that was seen; None: none was."""
        row = self._file.do("SELECT reason FROM forks LIMIT 1").fetchone()
        return None if row is None else str(row[0])

    def settle_fork(self) -> None:
        """Keep the stored fork as a record (rule 3)."""
        with self._file.one_change():
            kept = "INSERT INTO settled_forks SELECT * FROM forks WHERE (SELECT count(*) FROM settled_forks) < ?"
            self._file.do(kept, (MOST_SETTLED,))
            self._file.do("DELETE FROM forks")

    def settled_forks(self) -> list[str]:
        """Return the sentences of forks that were settled (rule 3)."""
        return [str(reason) for (reason,) in self._file.do("SELECT reason FROM settled_forks ORDER BY rowid")]

    def fork_documents(self) -> list[bytes]:
        """Return the two sealed documents of the fork that was seen; none: none was."""
        row = self._file.do("SELECT one, other FROM forks LIMIT 1").fetchone()
        return [] if row is None else [bytes(sealed) for sealed in row]

    def heads(self) -> list[tuple[bytes, int]]:
        """Return every sealed head, in order, with the serial of the newest Root known when it was stored."""
        return [
            (bytes(sealed), serial)
            for sealed, serial in self._file.do("SELECT sealed, root_serial FROM heads ORDER BY number")
        ]

    def _head(self, which: str, *values: int) -> WitnessedHead | None:
        row = self._file.do(f"SELECT sealed FROM heads {which}", values).fetchone()
        return None if row is None else _stored_head(row[0])


def least_number(begun: Sequence[SealedLog]) -> int:
    """Return the number up to which all of these logs have the heads before them."""
    return min(one.document.number for one in begun)


def _stored_head(stored: bytes) -> WitnessedHead:
    """Return a head that was verified before it was stored."""
    sealed = bytes(stored)
    return WitnessedHead(decode(decode_unverified(sealed).payload, LedgerHead), sealed)
