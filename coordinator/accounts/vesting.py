"""The pay of canaries: held apart until further groups of the key are accepted (coordinator/leases/kinds/canaries.py).

Rules
1. The weight of an accepted canary is posted to `node:<peer id>:unvested`.
2. Once `VESTED_AFTER` further groups of the key are accepted, an entry `canary.vested` moves it to `accrued`, in the
   transaction of the group that completes them.
   In a run with a market neither moves anything (pay.py, rule 4).
3. Table `unvested` has one row per canary until then. A row costs a whole group of work.
"""

from typing import Final

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.pay import POINTS, PayRule
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import accrued_account, unvested_account
from echo2.ledger.ledger_facts import CanaryVested
from echo2.p2p.identity import peer_id

VESTED_AFTER: Final = 10
"""Groups."""
AT_ONCE = 32
"""Most entries of one verdict; the rest follow with the next group."""


class Vesting:
    """The table `unvested`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database, ledger: Ledger, accounts: Accounts, pay: PayRule = POINTS) -> None:
        self._database = database
        self._ledger = ledger
        self._accounts = accounts
        self._pay = pay

    def on_decided(self, end: Decided) -> None:
        """Hold the weight of an accepted canary, and pay what another group of its key completes."""
        lease, group = end.lease, end.accepted
        if end.code == "canary":
            self.put(lease.id, lease.node, end.weight, VESTED_AFTER)
        if group is not None and group.owed:
            self.release(lease.node, end.now)

    def put(self, lease: bytes, node: bytes, weight: int, after: int) -> None:
        """Hold the weight of a canary until `after` further groups are accepted, in the transaction of its entry."""
        row = (lease, node, weight, self._accounts.account(node).accepted + after)
        self._database.do("INSERT INTO unvested VALUES (?, ?, ?, ?)", row)

    def holds(self, lease: bytes) -> bool:
        """Tell whether the pay of a canary is held."""
        return self._database.one("SELECT 1 FROM unvested WHERE lease = ?", (lease,)) is not None

    def release(self, node: bytes, now: int) -> int:
        """Pay what is due to a key (rule 2), in the transaction of an accepted group; return how many canaries."""
        due = self._database.all(
            "SELECT lease, weight FROM unvested WHERE node = ? AND due <= ? ORDER BY due LIMIT ?",
            (node, self._accounts.account(node).accepted, AT_ONCE),
        )
        peer = peer_id(node) if due else ""
        for lease, weight in due:
            fact = CanaryVested(node=peer, lease=lease, weight=weight)
            postings = self._pay.moves(unvested_account(peer), accrued_account(peer), weight)
            self._ledger.append(now, "canary.vested", f"vested:{lease.hex()}", fact, postings)
            self._database.do("DELETE FROM unvested WHERE lease = ?", (lease,))
        return len(due)
