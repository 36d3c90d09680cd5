"""Judge decided groups a second time, and reverse verdicts.

Rules
1. A second check judges a group with its node's groups before it as they were at the verdict. A refusal by the node's
   groups so far stands unless the group itself shows less.
2. A verdict is reversed by the rules of coordinator/accounts/reversals.py. A refused group is paid by the rule of the
   run's price mode, which needs its lengths, so its tokens must be stored.
"""

from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.accounts import reversals
from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.decided import BY_PASS
from echo2.coordinator.accounts.pay import PayRule
from echo2.coordinator.accounts.vesting import VESTED_AFTER
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.lease_outcomes import key_of, lengths_of
from echo2.coordinator.verdicts.reviews import LOST_REVIEW
from echo2.coordinator.verdicts.stored_receipts import MOST_REASON, Receipts
from echo2.coordinator.verification.evidence_table import EvidenceTable
from echo2.coordinator.verification.group_scores import GroupScores
from echo2.coordinator.verification.near_ties import NearTieCount
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.coordinator.verification.submitted_group import decode_stored_group
from echo2.coordinator.verification.verification import Verdict
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import LeaseReversed, counts_as_audited
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode
from echo2.protocol.group_weights import GroupLengths
from echo2.protocol.leases import Lease
from echo2.protocol.refusals import sentence

STALE_REASON: Final = (
    "with the node's groups before it, more tokens are those of the version before than an honest node's would be but"
    " for a chance of one in a million"
)


class _Stated(NamedTuple):
    """A verdict, as its row states it."""

    node: bytes
    verdict: str
    code: str
    weight: int


class SecondVerdicts:
    """Second checks and reversals of a run's verdicts."""

    def __init__(
        self,
        database: Database,
        accounting: Accounting,
        receipts: Receipts,
        scores: GroupScores,
        evidence: EvidenceTable,
        classes: OpenClasses,
        pay: PayRule,
    ) -> None:
        self._database, self._ledger = database, accounting.ledger
        self._accounts, self._costs, self._quarantine = accounting.accounts, accounting.costs, accounting.quarantine
        self._vesting = accounting.vesting
        self._receipts, self._scores, self._evidence, self._classes = receipts, scores, evidence, classes
        self._pay = pay

    def judge_again(self, lease: Lease, verdict: Verdict) -> tuple[str, str]:
        """Return (code, reason) to which a second check of a decided group leads, with the node's groups before it as
        they were at the verdict. A refusal by the node's groups so far stands unless the group itself shows less, and
        one by another than the scorer's pass stands in any case."""
        query = "SELECT code, at, verdict FROM verdicts WHERE lease = ?"
        first, at, said = self._database.all(query, (lease.id,))[0]
        if said == "refused" and first not in BY_PASS:
            return first, "the scorer's pass does not change it"
        tables = None if lease.calibration is None else self._classes.tables(lease.calibration)
        if verdict.behaviour is not None and verdict.compared is not None and tables is not None:
            joined = self._scores.join(lease.id, verdict.compared)
            conclusion = self._evidence.conclude(lease.id, joined, tables, at)
            if conclusion is None:
                return LOST_REVIEW, "the evidence before the group is no longer stored"
            if conclusion == "refusal" or first == "version-lie":
                return first, sentence("evidence") if conclusion == "refusal" else STALE_REASON
            return ("quarantine", sentence("quarantine")) if conclusion == "doubt" else ("ok", "")
        ties = verdict.ties
        if first.endswith("near-ties") and ties is not None and ties.near_ties:
            return first, sentence_by_groups(first, lease, ties)
        return verdict.code, verdict.reason

    def reverse(self, lease: bytes, by: str, why: str, now: int) -> Entry:
        """Reverse the verdict of a lease (coordinator/accounts/reversals.py); return the entry. Raises `LookupError`
        with the reason where that cannot be done."""
        end = self._stated_verdict(lease)
        if reversals.find(self._ledger, lease) is not None:
            raise LookupError("its verdict was reversed before")
        if self._quarantine.holds(lease):
            raise LookupError("its group is in quarantine: its day decides")
        if self._vesting.holds(lease):
            raise LookupError(
                f"its pay is held until {VESTED_AFTER} further groups of its node are accepted: not paid yet"
            )
        paid = end.verdict == "refused"
        lengths = self._lengths_of(lease) if paid else None
        weight = end.weight if lengths is None else self._pay.group_earnings(self._costs.now.costs, lengths)
        fact = LeaseReversed(
            node=peer_id(end.node), lease=lease, code=end.code, paid=paid, weight=weight,
            audited=paid or self._was_audited(lease), by=by, why=why[:MOST_REASON],
        )  # fmt: skip
        if lengths is not None:
            fact = msgspec.structs.replace(fact, **lengths._asdict(), costs=self._costs.now.entry)
        with self._database.transaction():
            if paid:
                self._pay.fund(self._ledger, now, weight)
            entry = reversals.reverse(self._ledger, self._accounts, self._pay, fact, now)
            reason = sentence("reversed-paid", why=why) if paid else sentence("reversed-unpaid", why=why)
            self._receipts.reseal_as("reversed-paid" if paid else "reversed-unpaid", reason, lease, now)
        return entry

    def _stated_verdict(self, lease: bytes) -> _Stated:
        row = self._database.one("SELECT node, verdict, code, weight FROM verdicts WHERE lease = ?", (lease,))
        if row is None:
            raise LookupError("there is no verdict on this lease")
        return _Stated(*row)

    def _was_audited(self, lease: bytes) -> bool:
        entry = self._ledger.find(key_of(lease))
        return entry is not None and counts_as_audited(entry)

    def _lengths_of(self, lease: bytes) -> GroupLengths:
        """Return the lengths of a refused group. Raises `LookupError`."""
        row = self._database.one(
            "SELECT l.document, s.payload FROM leases l JOIN submissions s ON s.lease = l.id WHERE l.id = ?", (lease,)
        )
        if row is None or row[1] is None:
            raise LookupError("its group is no longer stored, so its weight is not known")
        return lengths_of(decode(row[0], Lease), decode_stored_group(row[1]).rollouts)


def sentence_by_groups(code: str, lease: Lease, ties: NearTieCount | None) -> str:
    """Return the sentence of a group that is refused with its node's groups before it."""
    if code == "version-lie":
        return sentence(code, era=lease.era, version=lease.version, detail=STALE_REASON)
    ties = ties or NearTieCount(0, 0)
    return sentence(code, tokens=ties.sampled, count=ties.near_ties)
