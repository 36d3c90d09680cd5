"""The ledger in run.sqlite: entries are appended in the caller's transaction, and verified.

Rules
1. Entries are those of ledger/ledger_entries.py. Appending the same entry again has no effect; another entry under the
   same key is a bug.
2. No account is ever below zero, except `fund:operator`.
3. `balances` caches the sums of the postings per account; `verify` computes them again.
4. The tree over the entries has a row for each (coordinator/accounts/ledger_tree.py); `verify` computes it again.

Points mode: the unit is a milli-RE (a thousandth of a reference rollout), issued from `fund:operator`.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final

import msgspec

from echo2.coordinator.accounts.ledger_tree import LedgerTree
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import (
    ESCROW,
    FUND,
    ORIGIN,
    Entry,
    GrowingRows,
    LedgerFault,
    Posting,
    Tampered,
    Tip,
    canonical,
    chain_hash,
    check_postings,
    transfer,
)

POINTS_ISSUED = 1_000_000_000_000
"""Milli-RE that move from the fund to escrow whenever escrow runs out, on top of the amount due, in points mode."""

_BEFORE_ALL = -(1 << 63)
_INSERT_ENTRY: Final = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"
_encode = msgspec.msgpack.Encoder().encode


class Ledger:
    """The ledger in a database. Only `append` and `issue_points` write. `tree`: tree over its entries."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tree = LedgerTree(database)

    def append(
        self,
        at: int,
        kind: str,
        key: str,
        facts: msgspec.Struct,
        postings: Sequence[Posting] = (),
        *,
        new: bool = False,
    ) -> Entry:
        """Write an entry as part of the caller's transaction; return it. `new`: the caller knows that the key has no
        entry, and its transaction fails if it has one. Raises `LedgerFault`."""
        data, postings = _encode(facts), tuple(postings)
        check_postings(postings)
        lacking = self._lacking(postings)
        with self._database.within():
            end = self._end()
            seq = end.entries + 1
            written = canonical(seq, at, kind, key, postings, data)
            entry = Entry(seq, at, kind, key, postings, data, chain_hash(end.hash, written))
            if lacking is not None or not self._insert(entry, new=new):
                return self._earlier_entry(entry, lacking)
            self.tree.append(end.entries, written)
            for posting in postings:
                self._post(posting)
        return entry

    def _lacking(self, postings: Sequence[Posting]) -> str | None:
        """Return an account that postings would bring below zero (rule 2), if there is one."""
        changes: dict[str, int] = {}
        for account, amount in postings:
            changes[account] = changes.get(account, 0) + amount
        for account, amount in postings:
            if amount < 0 and account != FUND and self._balance_of(account) + changes[account] < 0:
                return account
        return None

    def _insert(self, entry: Entry, *, new: bool) -> bool:
        """Write the row of an entry; return False if its key is known. Nothing is written then."""
        row = (*entry[:4], _encode(entry.postings), entry.facts, entry.hash)
        if new:
            self._database.later(_INSERT_ENTRY, row, first=True)
        elif not self._database.do(f"{_INSERT_ENTRY} ON CONFLICT (key) DO NOTHING", row):
            return False
        self._database.written.put("entries", "end", Tip(entry.seq, entry.hash))
        return True

    def _earlier_entry(self, entry: Entry, lacking: str | None) -> Entry:
        """Return the entry that was written under the key of `entry` before (rule 1)."""
        known = self.find(entry.key)
        if known is None:
            raise LedgerFault(f"{lacking} would fall below zero by {entry.kind} {entry.key}")
        if (known.kind, known.postings, known.facts) != (entry.kind, entry.postings, entry.facts):
            raise LedgerFault(f"another entry has the key {entry.key}")
        return known

    def _post(self, posting: Posting) -> None:
        account, amount = posting
        self._database.later(
            "INSERT INTO balances VALUES (?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount", posting
        )
        before = self._database.written.get("balances", account)
        if before is not None:
            self._database.written.put("balances", account, before + amount)

    def _end(self) -> Tip:
        """Return the end for an append."""
        return self._database.written.get("entries", "end") or self.tip()

    def _balance_of(self, account: str) -> int:
        """Return the balance of an account for an append."""
        amount: int | None = self._database.written.get("balances", account)
        if amount is None:
            amount = self.balance(account)
            self._database.written.put("balances", account, amount)
        return amount

    def issue_points(self, at: int, least: int) -> None:
        """Raise escrow to at least `least` from the operator's fund, in points mode."""
        if self._balance_of(ESCROW) < least:
            issue = _Issue(amount=POINTS_ISSUED + least)
            key = f"points:{self.tip().entries + 1}"
            self.append(at, "points.issued", key, issue, transfer(FUND, ESCROW, issue.amount))

    def balance(self, account: str) -> int:
        """Return the balance of an account; 0 if it has no posting."""
        return self._database.value("SELECT amount FROM balances WHERE account = ?", (account,)) or 0

    def balances(self) -> dict[str, int]:
        """Return the balance of every account with a posting."""
        return {account: amount for account, amount in self._database.all("SELECT * FROM balances ORDER BY account")}

    def find(self, key: str) -> Entry | None:
        """Return the entry with this idempotency key, if there is one."""
        row = self._database.one("SELECT * FROM entries WHERE key = ?", (key,))
        return None if row is None else _entry(row)

    def entries_with_prefix(self, prefix: str) -> list[Entry]:
        """Return the entries whose keys begin with `prefix`, in order."""
        rows = self._database.all(
            "SELECT * FROM entries WHERE key >= ? AND key < ? ORDER BY seq", (prefix, f"{prefix}\U0010ffff")
        )
        return [_entry(row) for row in rows]

    def tip(self) -> Tip:
        row = self._database.one("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1")
        return Tip(0, ORIGIN) if row is None else Tip(*row)

    def entries(self, after: int = 0) -> Generator[Entry, None, None]:
        """Yield the entries in order, from the one that follows `after`."""
        query = "SELECT * FROM entries WHERE seq > ? ORDER BY seq"
        with contextlib.closing(self._database.each(query, (after,))) as rows:
            for row in rows:
                yield _entry(row)

    def entry(self, seq: int) -> Entry | None:
        """Return entry `seq`, if there is one."""
        row = self._database.one("SELECT * FROM entries WHERE seq = ?", (seq,))
        return None if row is None else _entry(row)

    def number_of(self, key: str) -> int | None:
        """Return the number of the entry with this idempotency key, if there is one."""
        seq: int | None = self._database.value("SELECT seq FROM entries WHERE key = ?", (key,))
        return seq

    def hash_of(self, seq: int) -> bytes | None:
        """Return the hash of entry `seq`, if there is one."""
        digest: bytes | None = self._database.value("SELECT hash FROM entries WHERE seq = ?", (seq,))
        return digest

    def bytes_of(self, seq: int) -> int:
        """Return about how many bytes entry `seq` has, without reading them; 0: there is no such entry."""
        query = "SELECT length(postings) + length(facts) FROM entries WHERE seq = ?"
        return self._database.value(query, (seq,)) or 0

    def canonical_of(self, seq: int) -> bytes | None:
        """Return the canonical bytes of entry `seq`, if there is one. Its postings are not decoded: the close of an
        epoch has thousands."""
        return next(self.canonical_between(seq, seq), None)

    def canonical_between(self, first: int, last: int) -> Generator[bytes, None, None]:
        """Yield the canonical bytes of entries `first` to `last`, as they are read."""
        query = "SELECT seq, at, kind, key, postings, facts FROM entries WHERE seq BETWEEN ? AND ? ORDER BY seq"
        for row in self._database.each(query, (first, last)):
            yield _encode([*row[:4], msgspec.Raw(row[4]), row[5]])

    def verify(self, paced: Callable[[Iterator[Entry]], Iterator[Entry]] = iter) -> Tip:
        """Verify the chain and the tree, and add up the postings; return the end. Raises `Tampered`. `paced`: yields
        the same entries, with pauses.

        Entries removed at the very end show only by a receipt or a LedgerHead that names a later entry."""
        leaves = self._database.each("SELECT leaf, digests FROM tree ORDER BY leaf")
        with contextlib.closing(leaves), contextlib.closing(self.entries(after=_BEFORE_ALL)) as entries:
            return self._verify(paced(entries), leaves)

    def _verify(self, entries: Iterator[Entry], stored: Iterator[tuple[int, bytes]]) -> Tip:
        seq, previous, sums, rows = 0, ORIGIN, Counter[str](), GrowingRows()
        for entry in entries:
            seq += 1
            if entry.seq != seq:
                raise Tampered(seq, f"is missing: entry {entry.seq} stands in its place")
            written = canonical(*entry[:6])
            if chain_hash(previous, written) != entry.hash:
                raise Tampered(seq, "the stored hash is not that of the stored content")
            if next(stored, None) != (seq - 1, rows.append(written)):
                raise Tampered(seq, "the stored tree is not that of the stored content")
            previous = entry.hash
            try:
                check_postings(entry.postings)
            except LedgerFault as fault:
                raise Tampered(seq, str(fault)) from fault
            for account, amount in entry.postings:
                sums[account] += amount
            below = [account for account, _ in entry.postings if sums[account] < 0 and account != FUND]
            if below:
                raise Tampered(seq, f"{below[0]} falls below zero")
        if {a: n for a, n in sums.items() if n} != {a: n for a, n in self.balances().items() if n}:
            raise Tampered(seq, "balances are not what the postings add up to")
        if next(stored, None) is not None:
            raise Tampered(seq, "the stored tree has more leaves than there are entries")
        return Tip(seq, previous)


class _Issue(msgspec.Struct, frozen=True):
    amount: int


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, at, kind, key, postings, facts, digest = row
    try:
        decoded = tuple(Posting(*p) for p in msgspec.msgpack.decode(postings, type=list[tuple[str, int]]))
    except msgspec.MsgspecError as error:
        raise Tampered(seq, f"postings do not decode: {error}") from error
    return Entry(seq, at, kind, key, decoded, facts, digest)
