"""The accounts of keys in run.sqlite: what the ledger says of each, updated in the transaction of each entry.

Rules
1. Standing is that of ledger/standing.py: `Accounts.of` reads a row, and agrees with all entries read anew
   (tests/coordinator/accounts/test_key_accounts.py).
2. A `key.rotated` passes the whole account of a key to its successor, and bans the old key for good
   (coordinator/accounts/key_successor.py).
3. Observers are told each key that an entry made proven, in the transaction of that entry: its name is compared with
   those of others then (coordinator/nodes/node_registry.py, rule 4).
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database, marks
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import KeyAccount, KeyRotated, Remark, Suspended, apply
from echo2.ledger.standing import Standing, at, rank
from echo2.p2p.identity import peer_id, public_key

Remarked = Literal["node.vouched", "node.banned", "node.unbanned", "node.noted"]
SERVED_CONDITION = "NOT EXISTS (SELECT 1 FROM accounts a WHERE a.node = key AND (a.banned IS NOT NULL OR a.until > ?))"
"""SQL condition: a row of `nodes` is neither banned nor suspended at `?`, ms."""


_PUT_ACCOUNT: Final = f"INSERT OR REPLACE INTO accounts VALUES (?, {marks(KeyAccount._fields)})"


def account_of(database: Database, node: bytes) -> KeyAccount:
    """Return the sum of the ledger's entries about a key, 32 bytes."""
    row = database.one(f"SELECT {', '.join(KeyAccount._fields)} FROM accounts WHERE node = ?", (node,))
    return KeyAccount() if row is None else KeyAccount(*row)._replace(vouched=bool(row[3]))


class AccountObservers(NamedTuple):
    """Those who are told of accounts, in the transaction of the entry. `proven`: called with the public key of each key
    that an entry made proven (rule 3). `entries`: called with each entry that is taken."""

    proven: Sequence[Callable[[bytes], None]] = ()
    entries: Sequence[Callable[[Entry], None]] = ()


NO_OBSERVERS: Final = AccountObservers()


class Accounts:
    """The table `accounts`, and the entries that concern only a key. A node is its public key, 32 bytes."""

    def __init__(self, database: Database, ledger: Ledger, observers: AccountObservers = NO_OBSERVERS) -> None:
        self.database = database
        self._ledger = ledger
        self._observers = observers

    def of(self, node: bytes, now: int) -> Standing:
        """Return the standing of a key at `now`, ms. The cost does not grow with the ledger."""
        return at(self.account(node), now)

    def account(self, node: bytes) -> KeyAccount:
        """Return the sum of the ledger's entries about a key."""
        account: KeyAccount | None = self.database.written.get("accounts", node)
        return account_of(self.database, node) if account is None else account

    def take(self, entry: Entry) -> None:
        """Update accounts by an entry that was just appended, in its transaction."""
        apply(entry, lambda node: self.account(public_key(node)), self._put)
        for take in self._observers.entries:
            take(entry)

    def _put(self, node: str, account: KeyAccount) -> None:
        key = public_key(node)
        is_new = rank(account) == "proven" and rank(self.account(key)) != "proven"
        self.database.later(_PUT_ACCOUNT, (key, *account))
        self.database.written.put("accounts", key, account)
        if is_new:
            for take in self._observers.proven:
                take(key)

    def remark(self, node: bytes, kind: Remarked, why: str, now: int) -> Entry:
        """Write an entry by which the operator vouches for a key, bans it, lifts its ban, or adds a note on it."""
        return self._append(now, kind, node, Remark(node=peer_id(node), why=why))

    def suspend(self, node: bytes, code: str, evidence: bytes, now: int, until: int) -> Entry:
        """Write an entry that suspends a key until `until`, ms. `evidence`: hash of the submission that caused it."""
        fact = Suspended(node=peer_id(node), code=code, evidence=evidence, since=now, until=until)
        return self._append(now, "node.suspended", node, fact)

    def rotate(self, old: bytes, new: bytes, now: int) -> Entry:
        """Write an entry by which the standing of `old` passes to `new`."""
        return self._append(now, "key.rotated", new, KeyRotated(node=peer_id(old), successor=peer_id(new)))

    def entries(self, node: bytes) -> list[Entry]:
        """Return the suspensions and remarks of a key, oldest first."""
        return self._ledger.entries_with_prefix(f"{_prefix(node)}:")

    def _append(self, now: int, kind: str, node: bytes, facts: msgspec.Struct) -> Entry:
        with self.database.transaction():
            key = f"{_prefix(node)}:{self._ledger.tip().entries + 1}"
            entry = self._ledger.append(now, kind, key, facts)
            self.take(entry)
        return entry


def _prefix(node: bytes) -> str:
    return f"key:{peer_id(node)}"
