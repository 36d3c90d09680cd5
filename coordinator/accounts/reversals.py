"""Reverse a verdict by a compensating entry of the ledger: an entry is never changed.

Rules
1. A lease is reversed at most once, under the key "reversed:<id>": a refused group is paid after all, or an accepted
   one is taken back. A group in quarantine is not reversed: its day decides. Nor is a canary
   whose pay is held (vesting.py): it would be paid later all the same.
2. In points mode the weight moves between `escrow:run` and the node's `accrued`. An account is never below zero: what a
   node lacks when a group is taken back is stated as `lacking`, and nobody owes it.
   In a run with a market the entry moves nothing. A group that is paid after all counts in the epoch that is open
   (coordinator/market/market_state.py); one that is taken back is forfeited (coordinator/epochs/late_refusals.py).
3. The group counts for the key's standing as if the second verdict had been the first (coordinator/accounts/
   ledger_facts.py). One that is paid after all ends a suspension, since a proof may rest on it.
4. The group's Receipt is sealed anew with the code `reversed-paid` or `reversed-unpaid`. All else in it stays.
"""

from typing import Final

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.pay import PayRule
from echo2.ledger.ledger_entries import ESCROW, Entry, accrued_account
from echo2.ledger.ledger_facts import LeaseReversed

PREFIX: Final = "reversed:"


def find(ledger: Ledger, lease: bytes) -> Entry | None:
    """Return the entry that reversed the verdict of a lease; None: none did."""
    return ledger.find(f"{PREFIX}{lease.hex()}")


def reverse(ledger: Ledger, accounts: Accounts, pay: PayRule, fact: LeaseReversed, now: int) -> Entry:
    """Write the entry of a reversal, in the caller's transaction, with escrow already covering a payment. `lacking` of
    the fact is set here. Raises `LedgerFault` for a second reversal of the lease."""
    account = accrued_account(fact.node)
    if fact.paid or not pay.at_once:
        postings = pay.moves(ESCROW, account, fact.weight)
    else:
        there = min(ledger.balance(account), fact.weight)
        fact = fact.lacks(fact.weight - there)
        postings = pay.moves(account, ESCROW, there)
    entry = ledger.append(now, "lease.reversed", f"{PREFIX}{fact.lease.hex()}", fact, postings)
    accounts.take(entry)
    return entry
