"""Verdicts: the decision on a group, in one transaction with its ledger entry, its receipt and its place in the buffer.

Rules
1. A lease ends once: accepted, refused or expired (lease_expiries.py), and is paid at most once. The ledger states each
   end once (lease_entries.py).
2. A group received before its lease expired is judged by its own content alone. If it is good it is paid. It is
   trainable iff its era is the learner's and step - version <= S at the verdict, and no twin of it is in the buffer
   (twin_sets.py); the buffer's draw checks the age again.
3. An accepted group earns by the pay rule of the run's price mode (coordinator/accounts/pay.py). A rollout without
   a sampled token, whose environment failed to open it, earns nothing. A group without any is not audited work: nothing
   was computed for it.
4. A group that comes too late is refused, with a receipt that refers to the lease's expiry in the ledger.
5. A rollout of a good group to which the task gave no finite reward is masked: the others are learned from, as a group
   of their own, and all are paid. Where fewer than two are left, the group is accepted and paid under the code
   `task-score`. It is not trainable: it never enters the buffer.
6. A group of a class that is not exact is decided by the evidence against its node, which this group moves on in the
   same transaction (coordinator/verification/evidence.py). In doubt, and for the rest of that day (UTC), it is
   accepted under the code `quarantine`: not trainable, and its weight is kept in `held:<node>`
   (coordinator/accounts/quarantine.py).
   So it is with the tokens of a group that was passed under the version before too, which may refuse it as
   `version-lie` (coordinator/verification/version_pairs.py).
   doubted_days.py says how that day ends. Then the group's Receipt is sealed anew with the code that tells how:
   `quarantine-paid` or `quarantine-unpaid`. Its entry stays.
   A canary is accepted under the code `canary`: never trainable, and its weight is kept in `unvested` until further
   groups of its key are accepted (coordinator/accounts/vesting.py). Its entry says so if its answer agreed (`audited`),
   and so does that of a group which agrees with an accepted one of another node (audits.py).
   A group that would be refused by these tokens may be one of a kind of device that is not known in the run, and is
   then refused as `unknown-device`, which counts against nobody (coordinator/verification/device_landings.py).
7. The near-ties of groups of an exact class are counted per key and party (coordinator/verification/near_ties.py).
8. A verdict may be checked again and reversed (reviews.py, second_verdicts.py).
9. The consequences of a verdict are drawn by the receivers of `Decided` (coordinator/accounts/decided.py).
"""

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.decided import AcceptedGroup, Decided
from echo2.coordinator.accounts.pay import pay_rule
from echo2.coordinator.accounts.vesting import VESTED_AFTER
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.age import fresh
from echo2.coordinator.leases.lease_rows import LeaseRecord
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.lease_terms import Progress
from echo2.coordinator.leases.rollout_context import RolloutContext
from echo2.coordinator.verdicts.doubted_days import DoubtedDays, ToCome
from echo2.coordinator.verdicts.group_at_verdict import GroupAtVerdict
from echo2.coordinator.verdicts.lease_entries import LeaseEntries
from echo2.coordinator.verdicts.lease_expiries import LeaseExpiries
from echo2.coordinator.verdicts.lease_outcomes import Basis, Earned, audited_by, lengths_of, outcome
from echo2.coordinator.verdicts.reviews import Reviews
from echo2.coordinator.verdicts.second_verdicts import SecondVerdicts, sentence_by_groups
from echo2.coordinator.verdicts.stored_receipts import Receipts
from echo2.coordinator.verification.device_landings import DeviceLandings
from echo2.coordinator.verification.evidence_table import EvidenceStep, EvidenceTable
from echo2.coordinator.verification.group_scores import GroupScores
from echo2.coordinator.verification.near_tie_table import NearTieTable
from echo2.coordinator.verification.near_ties import NearTieCount
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.coordinator.verification.submitted_group import ClaimedRollout
from echo2.coordinator.verification.verification import Verdict, sampled_tokens
from echo2.coordinator.verification.version_pair_table import VersionPairTable
from echo2.protocol.leases import Lease
from echo2.protocol.refusals import sentence
from echo2.tasks.task import Score
from echo2.tasks.turn_ends import is_end

BY_TOKENS = frozenset(("evidence", "seeded-choice"))
"""Codes of groups that are refused by their tokens, in a class that is not exact."""

log = structlog.get_logger("coordinator")

Confirms = Callable[[bytes, Sequence[ClaimedRollout]], bool]
"""(lease, rollouts) -> whether a good group agrees with an accepted one of another node (audits.py)."""


class VerdictService:
    """The verdicts on groups. `expiries`: the ends of leases without a group. `leases`: leases of the run."""

    def __init__(
        self,
        database: Database,
        accounting: Accounting,
        context: RolloutContext,
        classes: OpenClasses,
        reviews: Reviews,
        receipts: Receipts,
        entries: LeaseEntries,
        leases: LeaseTable,
        confirms: Confirms,
        *,
        check_wanted: Callable[[], None],
        to_come: ToCome,
    ) -> None:
        """`check_wanted`: called when a check of a verdict is asked for
        (coordinator/training/review_loop.py). `to_come`: see `DoubtedDays`."""
        self._database = database
        self._staleness, self._ends_of_turns = context.terms.staleness, context.spec.ends
        self._costs, self._quarantine = accounting.costs, accounting.quarantine
        self._pay = pay_rule(context.spec.price_mode)
        self._classes, self._confirms = classes, confirms
        self._entries, self.receipts, self.expiries = entries, receipts, LeaseExpiries(database, leases, entries)
        self.evidence = EvidenceTable(database)
        self._landings = DeviceLandings(database)
        self.near_ties = NearTieTable(database)
        self.version_pairs = VersionPairTable(database)
        self.scores = GroupScores(database)
        self.second = SecondVerdicts(database, accounting, receipts, self.scores, self.evidence, classes, self._pay)
        self.days = DoubtedDays(
            database, accounting, reviews, self.evidence, classes, check_wanted, to_come, receipts.end_quarantine
        )

    def decide(
        self,
        group: GroupAtVerdict,
        rollouts: Sequence[ClaimedRollout],
        verdict: Verdict,
        progress: Progress,
        now: int,
    ) -> bytes:
        """Decide a received group, in the caller's transaction; return its sealed Receipt, the stored one if it was
        decided before. `rollouts`: rollouts of the group. Raises `LookupError` without a received group."""
        if group.receipt is not None:
            return group.receipt
        record = group.record
        if record.state != "received":
            raise LookupError(f"no group was received for lease {record.lease.id.hex()}")
        basis = verdict.ties or self._bet(record.lease, verdict, now)
        code = self._blame_group(group, basis, now)
        if BY_TOKENS & {code, verdict.code} and isinstance(basis, EvidenceStep):
            landed = self._land(group, basis, now)
            if landed is not None:
                return landed
        if code:
            return self.refuse(record, code, sentence_by_groups(code, record.lease, verdict.ties), now, basis)
        if verdict.behaviour is None:
            place = verdict.sample, verdict.position
            return self.refuse(record, verdict.code, verdict.reason, now, basis, *place)
        return self._accept(group, rollouts, verdict.behaviour, progress, now, basis, verdict.audited)

    def _blame_group(self, group: GroupAtVerdict, basis: Basis | None, now: int) -> str:
        """Return the code under which a group is refused by its node's groups so far; empty: it is not."""
        if isinstance(basis, NearTieCount):
            return self.near_ties.take(group.record.lease.node, group.party, basis, now)
        if basis is None:
            return ""
        return "evidence" if basis.conclusion == "refusal" else "version-lie" if basis.stale else ""

    def _land(self, group: GroupAtVerdict, basis: EvidenceStep, now: int) -> bytes | None:
        """Refuse a group of an unknown kind of device, if it may land softly; return its sealed Receipt."""
        lease, digest = group.record.lease, group.record.lease.calibration or b""
        rounding, tables = self._classes.rounding(digest), self._classes.tables(digest)
        if rounding is None or tables is None:
            return None
        kind = self._landings.take(lease.node, lease.id, group.party, rounding, tables, now)
        if kind is None:
            return None
        log.warning("unknown device outside the bounds", device=kind, rounding=rounding, party=group.party)
        reason = sentence("unknown-device", device=kind, rounding=rounding)
        return self.refuse(group.record, "unknown-device", reason, now, basis)

    def _bet(self, lease: Lease, verdict: Verdict, now: int) -> EvidenceStep | None:
        """Move the evidence against a node on by the tokens of its group (rule 6); None where the class is exact."""
        tables = None if lease.calibration is None else self._classes.tables(lease.calibration)
        if verdict.compared is None or tables is None:
            return None
        self._quarantine.settle_key(lease.node, self.days, now)
        joined = self.scores.join(lease.id, verdict.compared)
        versions = verdict.versions
        stale = versions is not None and self.version_pairs.refuses(lease.node, versions, now)
        refused = verdict.behaviour is None or stale
        kept = self._quarantine.keeps(lease.node, now)
        step = self.evidence.take(lease.node, lease.id, joined, tables, now, refused=refused, kept=kept)
        if versions is not None and step.stored:
            self.version_pairs.put(lease.node, versions, now)
        return step._replace(versions=versions, stale=stale)

    def _accept(
        self,
        group: GroupAtVerdict,
        rollouts: Sequence[ClaimedRollout],
        behaviour: list[bytes],
        progress: Progress,
        now: int,
        basis: Basis | None,
        audited: str,
    ) -> bytes:
        lease, scores = group.record.lease, group.scores()
        doubted = isinstance(basis, EvidenceStep) and basis.conclusion == "doubt"
        code, reason = _accepted_as(group, scores, doubted=doubted)
        young = lease.era == progress.era and fresh(progress.step, lease.version, self._staleness)
        trainable = young and code == "ok" and not group.spare
        lengths = lengths_of(lease, rollouts)
        sampled = [sampled_tokens(one) for one in rollouts]
        given = sum(len(lease.prompt) + sum(turns) for turns in lengths.turns) - sum(sampled)
        total = self._pay.group_earnings(self._costs.now.costs, lengths)
        if group.twins and self._confirms(lease.id, rollouts):
            audited = "rerun"
        shown = (audited or audited_by(basis)) if any(sampled) else ""
        earned = Earned(len(rollouts), given, sum(sampled), total, trainable, shown, *lengths, self._costs.now.entry)
        end = outcome(group.record, group.at, group.hash, code, basis, earned)
        sealed = self.receipts.put(lease, end, self._entries.append(now, "lease.accepted", end), reason, now)
        accepted = AcceptedGroup(
            received=group.at or 0, position=group.position, party=group.party, share=group.share,
            summary=group.summary, twins=bool(group.twins), spare=bool(group.spare), owed=bool(group.owed),
            late=not young, trainable=trainable, agreed=bool(audited), scores=scores, lengths=sampled,
            cut=[bool(len(one.tokens)) and not is_end(int(one.tokens[-1]), self._ends_of_turns) for one in rollouts],
            behaviour=behaviour,
        )  # fmt: skip
        self._entries.publish(Decided(lease, code, now, end.submission_hash or bytes(32), total, accepted))
        return sealed

    def refuse(
        self,
        record: LeaseRecord,
        code: str,
        reason: str,
        now: int,
        basis: Basis | None = None,
        sample: int | None = None,
        position: int | None = None,
    ) -> bytes:
        """Refuse a group that was stored for a lease, in the caller's transaction; return the sealed Receipt.
        `basis`: basis of a group that the scorer's pass compared. `sample`, `position`: the place that decided it.
        Evidence that is stored has an entry of its own, as the entries of a key are a chain."""
        lease = record.lease
        at, digest = self._submission(lease.id)
        end = outcome(record, at, digest, code, basis)
        if isinstance(basis, EvidenceStep) and basis.stored:
            place = self._entries.append(now, "lease.refused", end)
        else:
            place = self._entries.append_unpaid(now, "lease.refused", end, lease.node)
        sealed = self.receipts.put(lease, end, place, reason, now)
        self._entries.publish(Decided(lease, code, now, digest, sample=sample, position=position))
        return sealed

    def refuse_late(self, record: LeaseRecord, reason: str, now: int) -> bytes:
        """Refuse a group that came after the end of its lease (rule 4); return the sealed Receipt."""
        lease = record.lease
        place = self.expiries.end(record, now)
        _, digest = self._submission(lease.id)
        end = outcome(record, now, digest, "late")
        sealed = self.receipts.put(lease, end, place, reason, now)
        self._entries.publish(Decided(lease, "late", now, digest))
        return sealed

    def _submission(self, lease: bytes) -> tuple[Any, bytes]:
        """Return when a lease's submission was received, and its hash."""
        row = self._database.one("SELECT at, hash FROM submissions WHERE lease = ?", (lease,))
        if row is None:
            raise LookupError(f"nothing was received for lease {lease.hex()}")
        return row[0], row[1]


def _accepted_as(group: GroupAtVerdict, scores: Sequence[Score | None], *, doubted: bool) -> tuple[str, str]:
    """Return the code of an accepted group, and its reason (rules 5 and 6)."""
    if group.canary:
        return "canary", sentence("canary", groups=VESTED_AFTER)
    if doubted:
        return "quarantine", sentence("quarantine")
    if not scores:
        return "task-score", sentence("task-score")
    return "ok", ""
