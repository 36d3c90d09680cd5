"""The Merkle tree over the ledger's entries: roots and proofs of every size that the ledger has had.

Rules
1. Leaf i is entry i + 1, and hashes as SHA-256(00 || canonical bytes of the entry): RFC 6962, section 2.1.
2. The row of a leaf (p2p/swarm/merkle_log.py) is written in the transaction of its entry.
3. A root, and a proof of inclusion or of consistency, reads O(log n) rows, whatever the size asked for.
"""

from collections.abc import Iterator

from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import sha256
from echo2.p2p.swarm import merkle, merkle_log


class LedgerTree:
    """The table `tree` of run.sqlite."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._log = merkle_log.MerkleLog(self._row, sha256)

    @property
    def size(self) -> int:
        """The number of leaves."""
        newest = self._database.value("SELECT max(leaf) FROM tree")
        return 0 if newest is None else newest + 1

    def append(self, index: int, entry: bytes) -> None:
        """Add leaf `index`, part of the caller's transaction. `entry`: its canonical bytes."""
        digests = merkle_log.row(index, merkle.leaf_hash(entry, sha256), self._earlier, sha256)
        self._database.later("INSERT INTO tree VALUES (?, ?)", (index, digests))
        self._database.written.put("tree", index, digests)

    def root(self, size: int) -> bytes:
        """Return the root over the first `size` entries."""
        return self._log.root(size)

    def subtree(self, level: int, position: int) -> bytes:
        """Return the digest of complete subtree `position` of those over 2^`level` leaves."""
        return self._log.subtree(level, position)

    def subtrees(self, level: int, first: int, end: int) -> Iterator[bytes]:
        """Yield the digests of complete subtrees `first` to before `end` of those over 2^`level` leaves."""
        if level:
            yield from (self.subtree(level, position) for position in range(first, end))
        else:
            query = "SELECT digests FROM tree WHERE leaf BETWEEN ? AND ? ORDER BY leaf"
            yield from (digests[:32] for (digests,) in self._database.each(query, (first, end - 1)))

    def inclusion(self, entry: int, size: int) -> list[bytes]:
        """Return the audit path of an entry in the tree over the first `size`. Raises `IndexError`."""
        return self._log.inclusion(entry - 1, size)

    def consistency(self, earlier: int, size: int) -> list[bytes]:
        """Return the proof that the tree over `size` entries begins with that over `earlier`. Raises `IndexError`."""
        return self._log.consistency(earlier, size)

    def _earlier(self, index: int) -> bytes:
        """Return a row for an append."""
        digests: bytes | None = self._database.written.get("tree", index)
        return self._row(index) if digests is None else digests

    def _row(self, index: int) -> bytes:
        digests: bytes | None = self._database.value("SELECT digests FROM tree WHERE leaf = ?", (index,))
        if digests is None:
            raise IndexError(f"the ledger's tree has no leaf {index}")
        return digests
