"""Count strikes against a key, and suspend it when there are enough.

Rules
1. A submission that is refused under a code in `STRIKE_CODES` is a strike, also if its bytes are no group at all. Codes
   that may be bad luck, or the fault of the operator or of others, are not (`late`, `expired`, `unknown-lease`,
   `not-scorable`, `task-score`, `party-near-ties`, `unknown-device`).
2. `SUSPENDING_STRIKES` strikes among a key's last `STRIKE_WINDOW_GROUPS` groups are a soft finding, which suspends it
   for a time. A single strike is none, since faulty memory can cause it. A soft finding takes no pay and no audited
   work.
3. The first suspension lasts the first of `SUSPENSION_TERMS_MS`. One that starts within `STRIKE_MEMORY_MS` after the
   end of the previous one lasts the next longer of them. Faults that are detected during a suspension date from before
   it, and are not counted.
4. A group that was not generated (`AT_ONCE`) is proof that its node did not work. It suspends the key at once, until an
   appeal or the operator lifts it.
5. Strikes are operational state in run.sqlite. A suspension, an entry of the ledger, deletes the key's strikes. A
   strike older than `STRIKE_MEMORY_MS` is deleted. For keys without accepted work only the newest `OF_FREE_KEYS`
   strikes are kept, since keys are free.
6. A key without a lease, now or before, cannot lose anything: the next key is free. Its requests are refused and leave
   no row. Otherwise a few bytes under each fresh key would fill the ledger.
7. A strike is against the key that signed the submission. So nothing is ever counted against a node whose tokens
   another one copies, or whose lease another one names.
"""

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_facts import KeyAccount
from echo2.ledger.standing import FOREVER_MS

STRIKE_CODES = frozenset((
    # detected at receipt (T0)
    "malformed", "too-large", "not-owner", "other-bytes", "version-lie", "other-weights", "incomplete", "turns",
    "tokens", "end", "segments", "logprobs", "transcript",
    # detected by the scorer (T1, T2)
    "seeded-choice", "close-choices", "drift", "drift-median", "evidence", "near-ties",
))  # fmt: skip
AT_ONCE = frozenset(("not-generated",))
SUSPENDING_STRIKES = 3
STRIKE_WINDOW_GROUPS = 100
"""Groups."""
HOUR = 3_600_000
SUSPENSION_TERMS_MS = (HOUR, 6 * HOUR, 24 * HOUR)
"""Milliseconds of a suspension by a soft finding: the first, the second, and each later one."""
STRIKE_MEMORY_MS = 30 * 24 * HOUR
"""Milliseconds for which a strike, and the length of the last suspension, are remembered (rules 3 and 5)."""
OF_FREE_KEYS = 1024
FORGOTTEN_AT_ONCE = 32


def suspended_until(account: KeyAccount, now: int, code: str = "") -> int:
    """Return when a suspension under a code that starts now ends, ms (rules 3 and 4)."""
    if code in AT_ONCE:
        return FOREVER_MS
    if account.until == 0 or now >= account.until + STRIKE_MEMORY_MS:
        return now + SUSPENSION_TERMS_MS[0]
    last = account.until - account.since
    return now + next((term for term in SUSPENSION_TERMS_MS if term > last), SUSPENSION_TERMS_MS[-1])


class Strikes:
    """The table `strikes`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database, accounts: Accounts) -> None:
        self._database = database
        self._accounts = accounts

    def of(self, node: bytes) -> int:
        """Count the strikes of a key among its last `STRIKE_WINDOW_GROUPS` groups."""
        query = "SELECT count(*) FROM strikes WHERE node = ? AND number > ?"
        return int(self._database.value(query, (node, self._accounts.account(node).groups - STRIKE_WINDOW_GROUPS)))

    def on_decided(self, end: Decided) -> None:
        """Count a group that was refused, in the transaction of its verdict."""
        if end.is_refused:
            self.on_refusal(end.lease.node, end.code, end.submission_hash, end.now)

    def on_refusal(self, node: bytes, code: str, evidence: bytes, now: int) -> None:
        """Count a refused submission by its code, and suspend the key if that is enough. `evidence`: the submission's
        hash. Part of the caller's transaction, after the refusal is written."""
        if code not in STRIKE_CODES | AT_ONCE or self._accounts.of(node, now).suspended_until is not None:
            return
        if not self._database.value("SELECT EXISTS (SELECT 1 FROM leases WHERE node = ?)", (node,)):
            return
        account = self._accounts.account(node)
        if code in STRIKE_CODES:
            self._database.do(
                "DELETE FROM strikes WHERE node = ? AND number <= ?", (node, account.groups - STRIKE_WINDOW_GROUPS)
            )
            row = (node, account.groups, code, evidence, now, account.accepted > 0)
            query = "INSERT INTO strikes (node, number, code, evidence, at, worked) VALUES (?, ?, ?, ?, ?, ?)"
            self._database.do(query, row)
        if code in AT_ONCE or self.of(node) >= SUSPENDING_STRIKES:
            self._accounts.suspend(node, code, evidence, now, suspended_until(account, now, code))
            self._database.do("DELETE FROM strikes WHERE node = ?", (node,))

    def forget(self, now: int) -> int:
        """Delete at most `FORGOTTEN_AT_ONCE` strikes by age, and at most as many of keys without accepted work (rule
        5), oldest first; return how many."""
        query = "DELETE FROM strikes WHERE id IN (SELECT id FROM strikes ORDER BY id LIMIT ?) AND at < ?"
        old = self._database.do(query, (FORGOTTEN_AT_ONCE, now - STRIKE_MEMORY_MS))
        newest = "SELECT id FROM strikes WHERE worked = 0 ORDER BY id DESC LIMIT 1 OFFSET ?"
        query = (
            "DELETE FROM strikes WHERE id IN"
            f" (SELECT id FROM strikes WHERE worked = 0 AND id <= ({newest}) ORDER BY id LIMIT ?)"
        )
        return old + self._database.do(query, (OF_FREE_KEYS, FORGOTTEN_AT_ONCE))
