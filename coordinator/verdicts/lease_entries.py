"""Write the ledger's entry about the end of a lease, and publish that end.

Rules
1. The ledger has one entry for the end of a lease, under `key_of`. A new key's lease that earned nothing, and any key's
   that is superseded, shares an entry with others instead (coordinator/accounts/lease_ends.py).
2. The weight of a canary and of a group in doubt is posted to an account of its node that holds it back.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.decided import Decided, OnDecided
from echo2.coordinator.accounts.lease_ends import LedgerPosition
from echo2.coordinator.accounts.pay import PayRule
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome, key_of
from echo2.ledger.ledger_entries import ESCROW, accrued_account, quarantine_account, unvested_account

_ACCOUNT_OF_CODE: Final = {"canary": unvested_account, "quarantine": quarantine_account}
"""Code of an accepted group -> the account of its node that holds its weight back."""


class LeaseEntries:
    """The entries about the ends of leases. Call its methods in the transaction that ends the lease."""

    def __init__(self, accounting: Accounting, pay: PayRule, receivers: Sequence[OnDecided]) -> None:
        """`receivers`: receivers of each end, in order."""
        self._ledger, self._accounts, self._ends = accounting.ledger, accounting.accounts, accounting.lease_ends
        self._pay, self._receivers = pay, receivers

    def publish(self, end: Decided) -> None:
        """Let the receivers do what follows from the end of a lease."""
        for receive in self._receivers:
            receive(end)

    def append(self, now: int, kind: str, end: LeaseOutcome) -> LedgerPosition:
        """Write an entry of its own, with its pay; return its place."""
        account = _ACCOUNT_OF_CODE.get(end.code, accrued_account)
        if end.weight:
            self._pay.fund(self._ledger, now, end.weight)
        postings = self._pay.moves(ESCROW, account(end.node), end.weight)
        entry = self._ledger.append(now, kind, key_of(end.lease), end, postings, new=True)
        self._accounts.take(entry)
        return LedgerPosition(entry.seq, entry.hash)

    def append_unpaid(self, now: int, kind: str, end: LeaseOutcome, node: bytes) -> LedgerPosition:
        """Write the end of a lease that earned nothing; return its place (rule 1)."""
        if end.code == "superseded" or self._accounts.of(node, now).rank == "new":
            return self._ends.put(end.lease, msgspec.msgpack.encode(end), now)
        return self.append(now, kind, end)

    def find(self, lease: bytes) -> LedgerPosition | None:
        """Return the place of a lease's end; None: there is none, or it was deleted."""
        entry = self._ledger.find(key_of(lease))
        return self._ends.find(lease) if entry is None else LedgerPosition(entry.seq, entry.hash)
