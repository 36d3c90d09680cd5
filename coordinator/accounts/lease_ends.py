"""Batch the ends of new keys' leases that earned nothing: a row for each at once, one ledger entry per minute for all.

Keys are free. With one entry per lease, new keys could fill the ledger without limit. So could any key with leases that
are superseded: these count against nobody, and there may be many per published version.

Rules
1. A new key's lease that expired, or whose group was refused, ends by a row of `ends`, and so does any key's
   superseded one: its LeaseOutcome, written in the transaction of its receipt. An accepted group has an entry of its
   own, and so has every other end of a known key's lease.
2. Once the oldest row without an entry is `ENTRY_DUE_MS` old, the oldest rows, at most `MOST_ENDS`, go into one entry
   `leases.ended`. It states their number, their counts by key, and a Merkle root (RFC 6962, SHA-256) over the
   LeaseOutcomes in the order of their leases' ids. The entries of `ENTRY_DUE_MS` count `MOST_KEYS` keys by themselves,
   those first whose standing falls by it, and the others in one row without a name. `FOR_REFUSED` of these places are
   for keys with refused groups alone: leases that expire take no place in a later entry of the same minute from them.
3. A receipt cannot name a future entry. It names entry 0, and its `entry_hash` is the hash of its LeaseOutcome as a
   leaf of that tree. It does not change when the entry is written.
4. The rows are the proof of these receipts. All rows of one entry are deleted `ENDS_KEPT_MS` after the entry, whose
   root and counts stay. A group for such a lease is then refused like one for an unknown lease.
"""

from collections import Counter
from typing import NamedTuple

import msgspec

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import sha256
from echo2.ledger.ledger_facts import WRONG_CODES, LeaseCounts, LeasesEnded
from echo2.p2p.swarm import merkle
from echo2.runtime.units import DAY

ENTRY_DUE_MS = 60_000
"""Age in milliseconds at which the oldest row is due."""
ENDS_KEPT_MS = DAY
"""Milliseconds: the challenge window, as for tokens (coordinator/verdicts/token_storage.py)."""
CODES_WITHOUT_GROUP = ("expired", "superseded", "declined")
"""Codes of leases that ended without a group."""
MOST_ENDS = 4096
"""Most ends of one entry: few enough that no request is delayed."""


MOST_KEYS = 1000
"""Most keys with counts of their own in the entries of `ENTRY_DUE_MS`: free keys do not grow the ledger beyond that."""
FOR_REFUSED = 500
OTHER_KEYS = ""
"""In place of a peer id: the row that sums the other keys."""


class LedgerPosition(NamedTuple):
    """The place of a lease's end in the ledger, as its receipt states it (rule 3)."""

    entry: int
    hash: bytes


class _StoredEnd(msgspec.Struct, frozen=True):
    """The fields of a LeaseOutcome (coordinator/verdicts/lease_outcomes.py) that are counted."""

    node: str
    code: str


def position_of(document: bytes) -> LedgerPosition:
    """Return the position of an encoded LeaseOutcome that has no entry of its own."""
    return LedgerPosition(0, merkle.leaf_hash(document, sha256))


def facts_of_ends(documents: list[bytes], own: int = MOST_KEYS) -> LeasesEnded:
    """Return the facts of the entry over these encoded LeaseOutcomes, given in the order of their leases' ids. `own`:
    most keys with counts of their own (rule 2)."""
    without, refused, wrong = Counter[str](), Counter[str](), Counter[str]()
    for end in (msgspec.msgpack.decode(document, type=_StoredEnd) for document in documents):
        (without if end.code in CODES_WITHOUT_GROUP else refused)[end.node] += 1
        wrong[end.node] += end.code in WRONG_CODES
    ranked = sorted(without | refused, key=lambda node: (-wrong[node], -refused[node], node))
    named = ranked[: max(min(own, len(+refused)), own - FOR_REFUSED)]
    counts = [LeaseCounts(node, without[node], refused[node], wrong[node]) for node in sorted(named)]
    if others := ranked[len(named) :]:
        sums = (sum(count[node] for node in others) for count in (without, refused, wrong))
        counts.insert(0, LeaseCounts(OTHER_KEYS, *sums))
    return LeasesEnded(ends=len(documents), root=merkle.root(documents, sha256), counts=counts)


class LeaseEnds:
    """The table `ends`: LeaseOutcomes that go into one ledger entry together."""

    def __init__(self, database: Database, ledger: Ledger, accounts: Accounts) -> None:
        self._database = database
        self._ledger = ledger
        self._accounts = accounts
        self._keys: list[tuple[int, int]] = []
        """When this process wrote the last entries, ms, and how many keys each counts by itself."""

    def put(self, lease: bytes, document: bytes, now: int) -> LedgerPosition:
        """Store the end of a lease, an encoded LeaseOutcome, and return its position. Part of the caller's
        transaction."""
        self._database.do("INSERT INTO ends VALUES (?, ?, ?, NULL)", (lease, now, document))
        return position_of(document)

    def find(self, lease: bytes) -> LedgerPosition | None:
        """Return the position of a lease's end, if it is in this table."""
        document = self._database.value("SELECT document FROM ends WHERE lease = ?", (lease,))
        return None if document is None else position_of(document)

    def write_entry(self, now: int) -> int:
        """Write one entry over the rows without an entry, if it is due (rule 2); return how many ends it covers. Call
        every second or so."""
        oldest = self._database.value("SELECT min(at) FROM ends WHERE entry IS NULL")
        if oldest is None or 0 <= now - oldest < ENTRY_DUE_MS:
            return 0
        query = "SELECT lease, document FROM ends WHERE entry IS NULL ORDER BY at LIMIT ?"
        rows = sorted(self._database.all(query, (MOST_ENDS,)))
        self._keys = [(at, keys) for at, keys in self._keys if 0 <= now - at < ENTRY_DUE_MS]
        facts = facts_of_ends([document for _, document in rows], MOST_KEYS - sum(keys for _, keys in self._keys))
        with self._database.transaction():
            entry = self._ledger.append(now, "leases.ended", f"ends:{self._ledger.tip().entries + 1}", facts)
            self._accounts.take(entry)
            for lease, _ in rows:
                self._database.do("UPDATE ends SET entry = ? WHERE lease = ?", (entry.seq, lease))
        self._keys.append((now, sum(one.node != OTHER_KEYS for one in facts.counts)))
        return len(rows)

    def forget(self, now: int) -> int:
        """Delete the rows of the oldest entry that has rows, if it is old enough (rule 4); return how many. Call every
        second or so."""
        entry = self._database.value("SELECT min(entry) FROM ends WHERE entry IS NOT NULL")
        if entry is None or now - self._database.value("SELECT at FROM entries WHERE seq = ?", (entry,)) < ENDS_KEPT_MS:
            return 0
        return self._database.do("DELETE FROM ends WHERE entry = ?", (entry,))
