"""Ends of new keys' leases that earned nothing: kept at once one by one, told to the ledger once a minute together.

Keys are free, so an entry for each of their leases would let anybody fill the ledger for ever.

Rules
1. A new key's lease that expired, or whose group was refused, ends by a row of `ends`: its LeaseOutcome, written in the
   transaction of its receipt. An accepted group has an entry of its own, and so has every end of a known key's lease.
2. Once the oldest row without an entry is `TOGETHER` old, the oldest of them (at most `MOST`) go into one entry
   `leases.ended`: their number, the root of the Merkle tree (RFC 6962, SHA-256) over the LeaseEnds in the order of
   their leases' ids, and what they came to by key.
3. A receipt cannot name an entry that is still to come: it names entry 0, and its `entry_hash` is the hash of the leaf
   that its LeaseOutcome is in that tree. It stays so when the entry is there.
4. The rows are what proves rule 3. Those of one entry go together, `KEPT` after it; its root and counts stay. A group
   that comes for such a lease then is answered like one for a lease that never was.
"""

import hashlib
from collections import Counter
from typing import NamedTuple

import msgspec

from coordinator.accounts.ledger import Ledger
from coordinator.accounts.ledger_facts import WRONG, LeaseCounts, LeasesEnded
from coordinator.accounts.standing import Accounts
from coordinator.database import Database
from p2p.swarm import merkle
from runtime.units import DAY

TOGETHER = 60_000
"""Milliseconds."""
KEPT = DAY
"""Milliseconds: the challenge window, as for tokens (coordinator/rollouts/token_storage.py)."""
MOST = 4096
"""Ends of one entry: few enough that nothing else waits for it."""


class LedgerPosition(NamedTuple):
    """Where a lease's end stands in the ledger, as its receipt says it (rule 3)."""

    entry: int
    hash: bytes


class _StoredEnd(msgspec.Struct, frozen=True):
    """Of a LeaseOutcome (coordinator/rollouts/verdicts.py)."""

    node: str
    code: str


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def position_of(document: bytes) -> LedgerPosition:
    """Return the place of an encoded LeaseOutcome that has no entry of its own."""
    return LedgerPosition(0, merkle.leaf_hash(document, sha256))


def ended(documents: list[bytes]) -> LeasesEnded:
    """Return the facts of the entry over these LeaseEnds, encoded, in the order of their leases' ids."""
    expired, refused, wrong = Counter[str](), Counter[str](), Counter[str]()
    for end in (msgspec.msgpack.decode(document, type=_StoredEnd) for document in documents):
        (expired if end.code == "expired" else refused)[end.node] += 1
        wrong[end.node] += end.code in WRONG
    counts = [LeaseCounts(node, expired[node], refused[node], wrong[node]) for node in sorted(expired | refused)]
    return LeasesEnded(ends=len(documents), root=merkle.root(documents, sha256), counts=counts)


class LeaseEnds:
    """The table `ends`."""

    def __init__(self, database: Database, ledger: Ledger, accounts: Accounts) -> None:
        self._database = database
        self._ledger = ledger
        self._accounts = accounts

    def put(self, lease: bytes, document: bytes, now: int) -> LedgerPosition:
        """Keep the end of a lease, an encoded LeaseOutcome, as part of the caller's transaction."""
        self._database.do("INSERT INTO ends VALUES (?, ?, ?, NULL)", (lease, now, document))
        return position_of(document)

    def find(self, lease: bytes) -> LedgerPosition | None:
        """Return where the end of a lease stands, if it stands here."""
        document = self._database.value("SELECT document FROM ends WHERE lease = ?", (lease,))
        return None if document is None else position_of(document)

    def tell(self, now: int) -> int:
        """Write the entry over the ends that wait for one, if it is time (rule 2); how many it tells of. Call every
        second or so."""
        oldest = self._database.value("SELECT min(at) FROM ends WHERE entry IS NULL")
        if oldest is None or 0 <= now - oldest < TOGETHER:
            return 0
        query = "SELECT lease, document FROM ends WHERE entry IS NULL ORDER BY at LIMIT ?"
        rows = sorted(self._database.all(query, (MOST,)))
        with self._database.transaction():
            key = f"ends:{self._ledger.tip().entries + 1}"
            entry = self._ledger.append(now, "leases.ended", key, ended([document for _, document in rows]))
            self._accounts.take(entry)
            for lease, _ in rows:
                self._database.do("UPDATE ends SET entry = ? WHERE lease = ?", (entry.seq, lease))
        return len(rows)

    def forget(self, now: int) -> int:
        """Remove the rows of the oldest entry that has any, if it is old enough (rule 4); how many. Call every
        second or so."""
        entry = self._database.value("SELECT min(entry) FROM ends WHERE entry IS NOT NULL")
        if entry is None or now - self._database.value("SELECT at FROM entries WHERE seq = ?", (entry,)) < KEPT:
            return 0
        return self._database.do("DELETE FROM ends WHERE entry = ?", (entry,))
