"""The kind of lease "audit": its offer, the comparison of the groups of a pair, and what the second end changes.

The rules stand in audits.py, the tables in audit_pairs.py.
"""

from collections.abc import Callable, Sequence

from echo2.coordinator.accounts.decided import BY_PASS, Decided
from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.kinds.audit_pairs import (
    AUDIT_WORK,
    AUDITS_AGREED,
    AUDITS_DIFFERED,
    AUDITS_DOUBTING_SCORER,
    AUDITS_GIVEN,
    AuditPairs,
)
from echo2.coordinator.leases.kinds.canaries import verdict_by_answer
from echo2.coordinator.leases.kinds.plain_leases import PlainLease
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.lease_terms import LeaseTerms
from echo2.coordinator.leases.lease_writer import AskedLease, LeaseKind, LeaseWriter
from echo2.coordinator.prompts.prompt_positions import PromptPosition
from echo2.coordinator.prompts.prompts import Prompt
from echo2.coordinator.verification.submitted_group import ClaimedRollout, decode_stored_group
from echo2.coordinator.verification.verification import Verdict

SPARE = ("no-room", "later")
"""Codes of the refusals in place of which an audit is given."""


class AuditLeases(LeaseKind):
    """The audits of a run. `pairs`: their tables."""

    def __init__(
        self,
        database: Database,
        table: LeaseTable,
        writer: LeaseWriter,
        pairs: AuditPairs,
        check_again: Callable[[Sequence[bytes], int], bool],
    ) -> None:
        """`check_again`: has refusals of groups checked by another process of the scorer (rule 7), at a time in ms;
        tells whether any can be."""
        self._database, self._table, self._writer = database, table, writer
        self.pairs, self._check_again = pairs, check_again

    def take(self, terms: LeaseTerms) -> None:
        """See `LeaseKind.take`."""
        self.pairs.draws.share = terms.audits

    def on_plain_grant(self, given: PlainLease) -> None:
        """Draw whether a plain lease that was given is audited (rule 1)."""
        chosen, request = given.chosen, given.asked.request
        under, origin = (request.era, request.version), given.asked.demand.requester.origin
        self.pairs.on_grant(given.lease, chosen.position, chosen.attempt, under, origin)

    def offer(self, asked: AskedLease) -> bytes | None:
        """Return a sealed Lease that another node has too, or had (rule 2)."""
        demand, request = asked.demand, asked.request
        if asked.refused is not None and asked.refused.code not in SPARE:
            return None
        if demand.rank != "proven" or demand.requester.share != "known" or not asked.exact:
            return None
        self.pairs.draws.keep(*self._table.oldest(asked.progress))
        drawn = self.pairs.to_audit(demand.requester.node, demand.requester.origin, request.era, request.version)
        record = None if drawn is None else self._table.find(drawn.lease)
        if drawn is None or record is None:
            return None
        lease, lent = record.lease, self._table.admission.owner_of_lease(drawn.lease)
        prompt = Prompt(lease.task, lease.task_version, lease.index, lease.prompt)
        chosen = PromptPosition(drawn.position, drawn.attempt, "" if lent is None else lent.reasons, prompt)
        with self._database.transaction():
            _, sealed = self._writer.write(chosen, asked, "audit", lease.seeds)
            self.pairs.count(AUDITS_GIVEN)
            self._table.recount(lease.id)
        self.pairs.draws.end(drawn)
        return sealed

    def compare(self, lease: bytes, rollouts: Sequence[ClaimedRollout]) -> Verdict | None:
        """Return the verdict on an audited group that agrees with an accepted one of another node (rule 5)."""
        answer = self.pairs.answer_of(lease)
        return None if answer is None else verdict_by_answer(rollouts, answer, audited="rerun")

    def confirms(self, lease: bytes, rollouts: Sequence[ClaimedRollout]) -> bool:
        """Tell whether a good group agrees with an accepted one of another node."""
        other = self.pairs.other(lease)
        return other is not None and other.accepted and other.agrees(rollouts)

    def on_decided(self, end: Decided) -> None:
        """Count the work of canaries and audits, and compare a pair of groups whose second one is decided (rules 5 to
        7)."""
        other = None
        if end.code in BY_PASS or (end.accepted is not None and end.accepted.twins):
            other = self.pairs.other(end.lease.id)
        if end.accepted is not None and (end.code == "canary" or (other is not None and other.accepted)):
            self.pairs.count(AUDIT_WORK, end.weight)
        payload = None if other is None else self._payload(end.lease.id)
        if other is None or payload is None:
            return
        if not other.agrees(decode_stored_group(payload).rollouts):
            self.pairs.count(AUDITS_DIFFERED)
            return
        codes = {end.lease.id: end.code, other.lease: "" if other.accepted else other.code}
        refused = [lease for lease, code in codes.items() if code in BY_PASS]
        self.pairs.count(AUDITS_DOUBTING_SCORER if self._check_again(refused, end.now) else AUDITS_AGREED)

    def _payload(self, lease: bytes) -> bytes | None:
        """Return the stored submission of a lease; None: its tokens are no longer stored."""
        payload: bytes | None = self._database.value("SELECT payload FROM submissions WHERE lease = ?", (lease,))
        return payload
