"""The stored Receipts of leases: which there are, which nodes have them, and those that are sealed anew.

Rules
1. A Receipt is sealed anew where the end of its lease has changed: its quarantine ended (verdicts.py, rule 6), or its
   verdict was reversed (coordinator/accounts/reversals.py). Code, reason and time change, all else in it stays.
2. The first one is written by the verdict (verdicts.py).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from echo2.coordinator.database.database import Database, marks
from echo2.coordinator.leases.rollout_context import Seal
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Receipt
from echo2.protocol.refusals import sentence

MOST_REASON: Final = 300
"""Most characters of a receipt's reason: a receipt stays under 1 KB."""


class Receipts:
    """The column `receipt` of the table `verdicts`."""

    def __init__(self, database: Database, seal: Seal) -> None:
        self._database, self._seal = database, seal

    def of(self, lease: bytes) -> bytes | None:
        """Return the sealed Receipt of a lease; None if there is none yet."""
        receipt: bytes | None = self._database.value("SELECT receipt FROM verdicts WHERE lease = ?", (lease,))
        return receipt

    def reseal_as(self, code: str, reason: str, lease: bytes, now: int) -> None:
        """Seal the Receipt of a lease anew with another code and reason; all else in it stays."""
        sealed = self.of(lease)
        if sealed is None:
            raise LookupError(f"lease {lease.hex()} has no Receipt")
        first = decode(decode_unverified(sealed).payload, Receipt)
        reason = reason[:MOST_REASON]
        sealed = self._seal("receipt", encode(msgspec.structs.replace(first, code=code, reason=reason, at=now)))
        self._database.do("UPDATE verdicts SET receipt = ? WHERE lease = ?", (sealed, lease))

    def confirm(self, node: bytes, leases: Sequence[bytes]) -> None:
        """Note that the node has stored the receipts of these leases durably."""
        query = f"UPDATE verdicts SET confirmed = 1 WHERE lease IN ({marks(leases)}) AND node = ? AND confirmed = 0"
        self._database.do(query, (*leases, node))

    def end_quarantine(self, lease: bytes, paid: bool, now: int) -> None:
        """Put a Receipt that says how a group's quarantine ended in the place of the first one (rule 1)."""
        code = "quarantine-paid" if paid else "quarantine-unpaid"
        reason = sentence("quarantine-paid") if paid else sentence("quarantine-unpaid")
        self.reseal_as(code, reason, lease, now)
