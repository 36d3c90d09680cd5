"""The stored Receipts of leases: which there are, which nodes have them, and those that are sealed anew.

Rules
1. A Receipt is sealed anew where the end of its lease has changed: its quarantine ended (verdicts.py, rule 6), or its
   verdict was reversed (coordinator/accounts/reversals.py). Code, reason and time change, all else in it stays.
2. The first one is written in the transaction of the verdict (verdicts.py). In a run with a market it names the epoch
   that is open, and the price of its node in it, where the group is accepted.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from echo2.coordinator.accounts.lease_ends import LedgerPosition
from echo2.coordinator.database.database import Database, marks
from echo2.coordinator.leases.paid_work import PaidWork
from echo2.coordinator.leases.rollout_context import Seal
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, Receipt
from echo2.protocol.refusals import sentence

ACCEPTED_CODES: Final = ("ok", "task-score", "quarantine", "canary")
"""Codes of accepted groups."""
MOST_REASON: Final = 300
"""Most characters of a receipt's reason: a receipt stays under 1 KB."""


class Receipts:
    """The table `verdicts` and its Receipts."""

    def __init__(self, database: Database, seal: Seal, run: bytes, paid_work: PaidWork) -> None:
        self._database, self._seal = database, seal
        self._run, self._paid_work = run, paid_work

    def put(self, lease: Lease, end: LeaseOutcome, place: LedgerPosition, reason: str, now: int) -> bytes:
        """Seal and store the Receipt of a group, in the transaction of its verdict. `place`: place of its end in the
        ledger."""
        verdict = "accepted" if end.code in ACCEPTED_CODES else "refused"
        priced = self._paid_work.price_of(lease.node) if verdict == "accepted" else None
        receipt = Receipt(
            run=self._run,
            node=lease.node,
            lease=lease.id,
            era=lease.era,
            version=lease.version,
            submission_hash=end.submission_hash or bytes(32),
            verdict=verdict,
            code=end.code,
            reason=reason[:MOST_REASON],
            trainable=end.trainable,
            weight=end.weight,
            entry=place.entry,
            entry_hash=place.hash,
            epoch=None if priced is None else priced.epoch,
            price=None if priced is None else priced.price,
            at=now,
        )
        sealed = self._seal("receipt", encode(receipt))
        work = (end.trainable, end.weight, end.rollouts, end.tokens_in + end.tokens_out)
        self._database.later(
            "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (lease.id, lease.node, verdict, end.code, *work, place.entry or None, now, sealed),
        )
        return sealed

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
