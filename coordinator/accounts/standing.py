"""The standing of a key: its rank (new, known or proven), and whether it is suspended or banned.

Rules
1. A key is *known* once it has done `KNOWN` groups of audited work, or once the operator vouches for it. It is *proven*
   while it has `PROVEN` groups of audited work, as long as the scorer's pass (T1 and T2,
   coordinator/verification/verification.py) refused none of its last `CLEAN`. Audited work decays, but never below
   `KNOWN` (coordinator/accounts/audited_work.py). Every other key is *new*. A key with evidence against it
   (`KeyAccount.doubted`) is *new* too, until a later entry clears it.
2. A suspension ends at the time that its entry states; one for a proof states none (`FOREVER`), and ends by an appeal
   or by the operator (coordinator/accounts/strikes.py). A ban ends when the operator lifts it, which also ends a
   suspension.
3. Standing follows from the ledger alone: `standing` reads the entries. `Accounts.of` reads a row that is updated in
   the transaction of each entry. Both agree (tests/coordinator/accounts/test_standing.py).
4. A `key.rotated` passes the whole account of a key to its successor, and bans the old key for good
   (coordinator/accounts/key_successor.py).
5. `became_proven` is told each key that an entry made proven, in the transaction of that entry: its name is compared
   with those of others then (coordinator/accounts/node_registry.py, rule 4).
6. Rank decides how much room a key gets (coordinator/leases/room_shares.py) and how its groups are verified
   (coordinator/verdicts/group_verifier.py), but never the pay of an accepted group.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

import msgspec

from echo2.coordinator.accounts.audited_work import KNOWN, ONE, PROVEN
from echo2.coordinator.accounts.ledger import Entry, Ledger
from echo2.coordinator.accounts.ledger_facts import KeyAccount, KeyRotated, Remark, Suspended, apply
from echo2.coordinator.database.database import Database, marks
from echo2.p2p.identity import peer_id, public_key

Rank = Literal["new", "known", "proven"]
Remarked = Literal["node.vouched", "node.banned", "node.unbanned", "node.noted"]
CLEAN = 300
"""Groups."""
FOREVER = (1 << 53) - 1
"""`Standing.suspended_until` of a banned key, and of one that is suspended for a proof, ms."""
SERVED = "NOT EXISTS (SELECT 1 FROM accounts a WHERE a.node = key AND (a.banned IS NOT NULL OR a.until > ?))"
"""SQL condition: a row of `nodes` is neither banned nor suspended at `?`, ms (rule 2)."""


_PUT: Final = f"INSERT OR REPLACE INTO accounts VALUES (?, {marks(KeyAccount._fields)})"


class Standing(NamedTuple):
    """The standing of one key. `suspended_until`: ms; None: the key is served. `code`: the reason of a suspension, a
    code of protocol/refusals.py, or "banned". `why`: the operator's reason of a ban."""

    rank: Rank = "new"
    suspended_until: int | None = None
    code: str = ""
    why: str = ""


NEW_KEY = Standing()


def standing(entries: Iterable[Entry], now: int) -> dict[str, Standing]:
    """Return the standing at `now` (ms) of every key that the entries name, by peer id. Any other has `NEW_KEY`."""
    accounts: dict[str, KeyAccount] = {}
    for entry in entries:
        apply(entry, lambda node: accounts.get(node, KeyAccount()), accounts.__setitem__)
    return {node: at(account, now) for node, account in accounts.items()}


def at(account: KeyAccount, now: int) -> Standing:
    """Return the standing of an account at `now`, ms."""
    if account.banned is not None:
        return Standing(rank(account), FOREVER, "banned", account.banned)
    if now < account.until:
        return Standing(rank(account), account.until, account.code)
    return Standing(rank(account))


def rank(account: KeyAccount) -> Rank:
    """Return the rank of an account (rule 1)."""
    if account.doubted:
        return "new"
    if account.audited >= PROVEN * ONE and (not account.wrong or account.groups - account.wrong >= CLEAN):
        return "proven"
    return "known" if account.audited >= KNOWN * ONE or account.vouched else "new"


def describe(standing: Standing) -> str:
    """Return a standing in words: "known", "new, suspended until 2026-11-22 10:00 UTC (drift)"."""
    if standing.suspended_until is None:
        return standing.rank
    if standing.code == "banned":
        return f"{standing.rank}, banned" + (f": {standing.why}" if standing.why else "")
    return f"{standing.rank}, suspended until {until(standing.suspended_until)} ({standing.code})"


def until(end: int) -> str:
    """Return the end of a suspension, given in ms, in words."""
    return "an appeal or the operator lifts it" if end >= FOREVER else minute(end)


def minute(at: int) -> str:
    """Return a time, given in ms, to the minute: "2026-11-22 10:00 UTC"."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def account_of(database: Database, node: bytes) -> KeyAccount:
    """Return the sum of the ledger's entries about a key, 32 bytes."""
    row = database.one(f"SELECT {', '.join(KeyAccount._fields)} FROM accounts WHERE node = ?", (node,))
    return KeyAccount() if row is None else KeyAccount(*row)._replace(vouched=bool(row[3]))


class Accounts:
    """The table `accounts`, and the entries that concern only a key. A node is its public key, 32 bytes."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self.database = database
        self._ledger = ledger
        self.became_proven: Callable[[bytes], None] = lambda node: None
        """Called with the public key (rule 5)."""
        self.taken: Callable[[Entry], None] = lambda entry: None
        """Called with each entry that is taken, in its transaction."""

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
        self.taken(entry)

    def _put(self, node: str, account: KeyAccount) -> None:
        key = public_key(node)
        is_new = rank(account) == "proven" and rank(self.account(key)) != "proven"
        self.database.later(_PUT, (key, *account))
        self.database.written.put("accounts", key, account)
        if is_new:
            self.became_proven(key)

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
        return self._ledger.keyed(f"{_prefix(node)}:")

    def _append(self, now: int, kind: str, node: bytes, facts: msgspec.Struct) -> Entry:
        with self.database.transaction():
            key = f"{_prefix(node)}:{self._ledger.tip().entries + 1}"
            entry = self._ledger.append(now, kind, key, facts)
            self.take(entry)
        return entry


def _prefix(node: bytes) -> str:
    return f"key:{peer_id(node)}"
