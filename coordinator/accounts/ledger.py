"""The ledger: append-only entries in a hash chain, double entry, integers only.

Rules
1. An entry is a set of postings that sums to 0, or none at all: then it states a fact.
2. An entry has an idempotency key. The same entry again is the same entry; another under the same key is a bug.
3. entry_hash = SHA-256(previous entry_hash || canonical bytes); before the first entry stands a hash of 32 zero bytes.
   Canonical bytes are MessagePack of [seq, at, kind, key, postings, facts], facts being MessagePack themselves.
4. No account is ever below zero but `fund:operator`.
5. `balances` is what the postings add up to, kept beside them for speed; `verify` adds them up again.

Points mode: the unit is a milli-RE (a thousandth of a reference rollout), issued from `fund:operator`.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from coordinator.database import Database

ORIGIN = bytes(32)
FUND, ESCROW, ROUNDING, FORFEIT = "fund:operator", "escrow:run", "rounding", "forfeit"
POINTS_ISSUED = 1_000_000_000_000
"""Milli-RE that move from the fund to escrow whenever escrow runs out, in points mode."""

_ACCOUNT = re.compile(
    r"fund:operator|escrow:run|rounding|forfeit|paid:[a-z]+|node:[1-9A-HJ-NP-Za-km-z]+:(accrued|unvested|payable)"
)
_BEFORE_ALL = -(1 << 63)
_encode = msgspec.msgpack.Encoder().encode


class Posting(NamedTuple):
    """`amount` is added to `account`: nano-USD, or milli-RE in points mode."""

    account: str
    amount: int


class Entry(NamedTuple):
    seq: int
    at: int
    kind: str
    key: str
    postings: tuple[Posting, ...]
    facts: bytes
    hash: bytes


class Tip(NamedTuple):
    """Where the ledger ends: number of entries, and the last one's hash."""

    entries: int
    hash: bytes


class LedgerFault(Exception):
    """An entry that must not be written: a bug of the caller. Nothing was written."""


class Tampered(Exception):
    """The stored ledger breaks its own rules at entry `seq`."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"ledger entry {seq}: {why}")
        self.seq = seq


def accrued(node: str) -> str:
    """The account that a node's accepted work goes to; `node` is its peer id."""
    return f"node:{node}:accrued"


def transfer(source: str, target: str, amount: int) -> tuple[Posting, ...]:
    return (Posting(source, -amount), Posting(target, amount)) if amount else ()


def canonical(seq: int, at: int, kind: str, key: str, postings: Sequence[Posting], facts: bytes) -> bytes:
    """The bytes of an entry that its hash covers."""
    return _encode([seq, at, kind, key, [list(p) for p in postings], facts])


def chained(previous: bytes, entry: bytes) -> bytes:
    return hashlib.sha256(previous + entry).digest()


class Ledger:
    """The entries in a database. Every method but `append` and `issue_points` only reads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, at: int, kind: str, key: str, facts: msgspec.Struct, postings: Sequence[Posting] = ()) -> Entry:
        """Write an entry as part of the caller's transaction. Raises `LedgerFault`."""
        data, postings = _encode(facts), tuple(Posting(*p) for p in postings)
        _check(postings)
        known = self.find(key)
        if known is not None:
            if (known.kind, known.postings, known.facts) != (kind, postings, data):
                raise LedgerFault(f"another entry has the key {key}")
            return known
        with self._database.transaction():
            end = self.tip()
            seq = end.entries + 1
            digest = chained(end.hash, canonical(seq, at, kind, key, postings, data))
            stored = _encode([list(p) for p in postings])
            row = (seq, at, kind, key, stored, data, digest)
            self._database.do("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            for posting in postings:
                self._post(posting)
            for account in {p.account for p in postings} - {FUND}:
                if self.balance(account) < 0:
                    raise LedgerFault(f"{account} would fall below zero by {kind} {key}")
        return Entry(seq, at, kind, key, postings, data, digest)

    def _post(self, posting: Posting) -> None:
        self._database.do(
            "INSERT INTO balances VALUES (?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount", posting
        )

    def issue_points(self, at: int, least: int) -> None:
        """Points mode: see that escrow holds at least `least`."""
        if self.balance(ESCROW) < least:
            issue = _Issue(amount=POINTS_ISSUED + least)
            key = f"points:{self.tip().entries + 1}"
            self.append(at, "points.issued", key, issue, transfer(FUND, ESCROW, issue.amount))

    def balance(self, account: str) -> int:
        return self._database.value("SELECT amount FROM balances WHERE account = ?", (account,)) or 0

    def balances(self) -> dict[str, int]:
        return {account: amount for account, amount in self._database.all("SELECT * FROM balances ORDER BY account")}

    def find(self, key: str) -> Entry | None:
        row = self._database.one("SELECT * FROM entries WHERE key = ?", (key,))
        return None if row is None else _entry(row)

    def keyed(self, prefix: str) -> list[Entry]:
        """Return the entries whose keys begin with `prefix`, in order."""
        rows = self._database.all(
            "SELECT * FROM entries WHERE key >= ? AND key < ? ORDER BY seq", (prefix, f"{prefix}\U0010ffff")
        )
        return [_entry(row) for row in rows]

    def tip(self) -> Tip:
        row = self._database.one("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1")
        return Tip(0, ORIGIN) if row is None else Tip(*row)

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Entries in order, from the one that follows `after`."""
        for row in self._database.each("SELECT * FROM entries WHERE seq > ? ORDER BY seq", (after,)):
            yield _entry(row)

    def verify(self) -> Tip:
        """Walk the chain and add up the postings. Raises `Tampered`.

        Facts cut off at the very end show only beside a receipt that names a later entry."""
        seq, previous, sums = 0, ORIGIN, Counter[str]()
        for entry in self.entries(after=_BEFORE_ALL):
            seq += 1
            if entry.seq != seq:
                raise Tampered(seq, f"is not where it belongs, but {entry.seq}")
            if chained(previous, canonical(*entry[:6])) != entry.hash:
                raise Tampered(seq, "does not hash to what is stored")
            previous = entry.hash
            try:
                _check(entry.postings)
            except LedgerFault as fault:
                raise Tampered(seq, str(fault)) from fault
            for account, amount in entry.postings:
                sums[account] += amount
            below = [account for account, _ in entry.postings if sums[account] < 0 and account != FUND]
            if below:
                raise Tampered(seq, f"{below[0]} falls below zero")
        if {a: n for a, n in sums.items() if n} != {a: n for a, n in self.balances().items() if n}:
            raise Tampered(seq, "balances are not what the postings add up to")
        return Tip(seq, previous)


class _Issue(msgspec.Struct, frozen=True):
    amount: int


def _check(postings: Sequence[Posting]) -> None:
    if sum(p.amount for p in postings) != 0:
        raise LedgerFault("postings do not sum to 0")
    for account, _ in postings:
        if _ACCOUNT.fullmatch(account) is None:
            raise LedgerFault(f"there is no account {account!r}")


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, at, kind, key, postings, facts, digest = row
    try:
        decoded = tuple(Posting(*p) for p in msgspec.msgpack.decode(postings, type=list[tuple[str, int]]))
    except msgspec.MsgspecError as error:
        raise Tampered(seq, f"postings do not decode: {error}") from error
    return Entry(seq, at, kind, key, decoded, facts, digest)
