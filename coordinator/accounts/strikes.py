"""Strikes: what a key did against the rules lately, and when it is suspended for it.

Rules
1. A refused group whose reason is in `STRIKES` is a strike, and so are bytes that are no group at all. A reason that
   may be bad luck or the operator's fault (`late`, `expired`, `unknown-lease`, `not-scorable`, `task-score`) never is.
2. `ENOUGH` strikes in a key's last `WINDOW` groups suspend it, for `TERM`: a bad memory chip is no fraud. A group of
   which nothing was generated (`AT_ONCE`) suspends at once.
3. A suspension that begins within `MEMORY` after the end of the one before lasts twice as long as that one, `LONGEST`
   at most. Faults that come to light while a suspension runs were made before it, and add nothing.
4. Strikes are operational: they live in run.sqlite, and a suspension, which is an entry of the ledger, wipes them away.
   One that is older than `MEMORY` is forgotten. Of those that keys without accepted work had, the newest `OF_FREE_KEYS`
   alone are kept: a key costs nothing, so a crowd of them may leave no row each.
5. A key that holds no lease, and never handed anything in under one, has nothing to lose: the next one is free. Its
   requests are refused, and leave nothing behind. Else a few bytes under each fresh key would fill the ledger.
"""

from coordinator.accounts.ledger_facts import KeyAccount
from coordinator.accounts.standing import Accounts
from coordinator.database import Database
from runtime.backoff import Backoff

STRIKES = frozenset((
    # found at receipt (T0)
    "malformed", "too-large", "not-owner", "other-bytes", "version-lie", "incomplete", "turns", "tokens", "end",
    "segments", "logprobs", "transcript",
    # found by the scorer (T1, T2)
    "seeded-choice", "close-choices", "drift", "drift-median",
))  # fmt: skip
AT_ONCE = frozenset(("not-generated",))
ENOUGH = 3
WINDOW = 100
"""Groups."""
TERM = 3_600_000
"""Milliseconds of a first suspension."""
LONGEST = 7 * 24 * TERM
_TERMS = Backoff(TERM, LONGEST)
MEMORY = 30 * 24 * TERM
OF_FREE_KEYS = 1024
FORGOTTEN_AT_ONCE = 32


def suspended_until(account: KeyAccount, now: int) -> int:
    """Return when a suspension that begins now ends, ms (rule 3)."""
    if account.until == 0 or now >= account.until + MEMORY:
        return now + TERM
    return now + int(_TERMS.after(account.until - account.since))


class Strikes:
    """The table of strikes. A node is its public key, 32 bytes."""

    def __init__(self, database: Database, accounts: Accounts) -> None:
        self._database = database
        self._accounts = accounts

    def of(self, node: bytes) -> int:
        """Return how many strikes a key has among its last `WINDOW` groups."""
        query = "SELECT count(*) FROM strikes WHERE node = ? AND number > ?"
        return int(self._database.value(query, (node, self._accounts.account(node).groups - WINDOW)))

    def refused(self, node: bytes, code: str, evidence: bytes, now: int) -> None:
        """Note why a submission of a key was refused; suspend the key if that is enough. `evidence`: the submission's
        hash. Part of the caller's transaction, after the refusal is written."""
        if code not in STRIKES | AT_ONCE or self._accounts.of(node, now).suspended_until is not None:
            return
        if not self._database.value("SELECT EXISTS (SELECT 1 FROM leases WHERE node = ?)", (node,)):
            return
        account = self._accounts.account(node)
        if code in STRIKES:
            self._database.do("DELETE FROM strikes WHERE node = ? AND number <= ?", (node, account.groups - WINDOW))
            row = (node, account.groups, code, evidence, now, account.accepted > 0)
            query = "INSERT INTO strikes (node, number, code, evidence, at, worked) VALUES (?, ?, ?, ?, ?, ?)"
            self._database.do(query, row)
        if code in AT_ONCE or self.of(node) >= ENOUGH:
            self._accounts.suspend(node, code, evidence, now, suspended_until(account, now))
            self._database.do("DELETE FROM strikes WHERE node = ?", (node,))

    def forget(self, now: int, most: int = FORGOTTEN_AT_ONCE) -> int:
        """Forget at most `most` strikes by age, and as many of keys without accepted work, by rule 4, the oldest first;
        how many."""
        query = "DELETE FROM strikes WHERE id IN (SELECT id FROM strikes ORDER BY id LIMIT ?) AND at < ?"
        old = self._database.do(query, (most, now - MEMORY))
        newest = "SELECT id FROM strikes WHERE worked = 0 ORDER BY id DESC LIMIT 1 OFFSET ?"
        query = (
            "DELETE FROM strikes WHERE id IN"
            f" (SELECT id FROM strikes WHERE worked = 0 AND id <= ({newest}) ORDER BY id LIMIT ?)"
        )
        return old + self._database.do(query, (OF_FREE_KEYS, most))
