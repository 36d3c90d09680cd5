"""Take the reports of groups under way: the coordinator's side of the method `partial`.

Rules
1. A report is taken for an open lease of the key that sends it, if the lease asks for reports (moving.py, rule 1). The
   lease's id and the time of its last report are looked up first: a report that comes too early is not read.
2. A report that does not begin where the last one ended changes nothing: the answer says how many tokens are written,
   and the node goes on from there. So the same report twice is one report, and what is written is never changed.
3. A report of the wrong form is refused. That is no strike: nothing of it is kept, and its group may still come whole.
"""

from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.kinds.moving import LeaseFacts, SampleProgress, continues, least_between, progress_after
from echo2.coordinator.leases.lease_rows import LeaseRecord
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.rollout_context import RolloutContext
from echo2.coordinator.verification.submitted_group import lease_of
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease
from echo2.protocol.partial_groups import PartialRequest, PartialResponse
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal


class PartialReports:
    """Reports come in; the tokens written so far go out."""

    def __init__(self, database: Database, leases: LeaseTable, context: RolloutContext) -> None:
        self._database, self._leases, self._spec = database, leases, context.spec

    def report(self, node: bytes, data: bytes, now: int) -> PartialResponse | Refusal:
        """Take a report from the node that signed it. Raises `Malformed`."""
        record = self._leases.find(lease_of(data))
        if record is None:
            return refusal("unknown-lease")
        if record.lease.node != node:
            return refusal("not-owner")
        return self._unfit(record, now) or self._taken(record.lease, data, now)

    def _unfit(self, record: LeaseRecord, now: int) -> Refusal | None:
        """Return why no report of a lease is read now (rule 1)."""
        if record.state == "expired" or now > record.expires:
            return refusal("late", late=max(0, now - record.expires))
        if record.state != "open":
            return refusal("partial", detail="its group was submitted")
        if record.lease.report_every is None or not self._leases.terms.move:
            return refusal("partial", detail="this lease asks for no reports")
        known = self._leases.begun.reported(record.lease.id)
        least = least_between(record.lease.report_every)
        wait = least - (now - known.at) if known is not None and now >= known.at else 0
        if wait > 0:
            return refusal("partial-early", retry_after=wait, most=least / 1000, wait=wait / 1000)
        return None

    def _taken(self, lease: Lease, data: bytes, now: int) -> PartialResponse | Refusal:
        """Append a report to those before it (rules 2 and 3). Raises `Malformed`."""
        report = decode(data, PartialRequest)
        samples = report.samples
        if len(samples) != len(lease.seeds):
            return refusal("partial", detail=f"it has {len(samples)} samples, and the lease {len(lease.seeds)}")
        known = self._leases.begun.reported(lease.id)
        before = [SampleProgress()] * len(samples) if known is None else known.samples
        if not any(one.tokens for one in samples) or not continues(before, samples):
            return PartialResponse(tokens=[one.tokens for one in before])
        facts = LeaseFacts(len(samples), lease.limit, self._spec.vocabulary, self._spec.ends)
        after = progress_after(before, samples, facts)
        if isinstance(after, str):
            return refusal("partial", detail=after)
        with self._database.transaction():
            self._leases.begun.append(lease.id, after, encode(report), now)
        return PartialResponse(tokens=[one.tokens for one in after])
