"""Verdicts: the end of a lease, in one transaction with its ledger entry, its receipt and its place in the buffer.

Rules
1. A lease ends once: accepted, refused or expired, and is paid at most once. It expires before its time where it is
   superseded (superseded_leases.py) or given back. The ledger has one entry for it (key "lease:<id>"). A new key's
   lease that earned nothing, and any key's that is superseded, shares an entry with others instead
   (coordinator/accounts/lease_ends.py).
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
   In a run with a market its Receipt names the epoch that is open and the node's price in it.
8. A verdict may be checked again and reversed (reviews.py, second_verdicts.py).
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec
import structlog

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.lease_ends import LedgerPosition
from echo2.coordinator.accounts.pay import pay_rule
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.age import fresh
from echo2.coordinator.learner.objective.advantages import signal_of
from echo2.coordinator.leases.kinds.audit_pairs import (
    AUDIT_WORK,
    AUDITS_AGREED,
    AUDITS_DIFFERED,
    AUDITS_DOUBTING_SCORER,
)
from echo2.coordinator.leases.kinds.canaries import VESTED_AFTER
from echo2.coordinator.leases.lease_rows import LeaseRecord
from echo2.coordinator.leases.lease_table import Early, LeaseTable
from echo2.coordinator.leases.lease_terms import Progress
from echo2.coordinator.leases.rollout_context import Seal
from echo2.coordinator.prompts.prompt_records import figures_of
from echo2.coordinator.verdicts.doubted_days import DoubtedDays
from echo2.coordinator.verdicts.group_at_verdict import GroupAtVerdict
from echo2.coordinator.verdicts.lease_outcomes import (
    Basis,
    Earned,
    LeaseOutcome,
    audited_by,
    key_of,
    lengths_of,
    outcome,
)
from echo2.coordinator.verdicts.reviews import BY_PASS, Reviews
from echo2.coordinator.verdicts.second_verdicts import SecondVerdicts, sentence_by_groups
from echo2.coordinator.verdicts.stored_receipts import MOST_REASON, Receipts
from echo2.coordinator.verdicts.task_results import TaskResults, sums_of
from echo2.coordinator.verdicts.token_storage import TokenStorage
from echo2.coordinator.verification.device_landings import DeviceLandings
from echo2.coordinator.verification.evidence_table import EvidenceStep, EvidenceTable
from echo2.coordinator.verification.group_scores import GroupScores
from echo2.coordinator.verification.near_tie_table import NearTieTable
from echo2.coordinator.verification.near_ties import NearTieCount
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.coordinator.verification.submitted_group import ClaimedRollout, decode_stored_group
from echo2.coordinator.verification.verification import Verdict, sampled_tokens
from echo2.coordinator.verification.version_pair_table import VersionPairTable
from echo2.ledger.ledger_entries import ESCROW, accrued_account, quarantine_account, unvested_account
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RunSpec
from echo2.protocol.leases import Lease, Receipt
from echo2.protocol.refusals import sentence
from echo2.tasks.task import Score
from echo2.tasks.turn_ends import is_end

ACCEPTED_CODES = ("ok", "task-score", "quarantine", "canary")
"""Codes of accepted groups."""
BY_TOKENS = frozenset(("evidence", "seeded-choice"))
"""Codes of groups that are refused by their tokens, in a class that is not exact."""
RECENT_VERDICTS = 200
"""Decided groups whose codes are remembered."""
EXPIRED_AT_ONCE = 64
"""Most leases that end in one call: few enough that no request is delayed, even if thousands of nodes leave."""

log = structlog.get_logger("coordinator")


class VerdictService:
    """The ends of leases, by verdicts and expiries. `recent`: codes of the groups decided last, at most
    `RECENT_VERDICTS`, since the process started. `recent_of`: share of rollouts without a finite
    reward, of each task's groups; 1 where the group is not learned from for it."""

    def __init__(
        self,
        database: Database,
        leases: LeaseTable,
        accounting: Accounting,
        seal: Seal,
        spec: RunSpec,
        classes: OpenClasses,
        check_wanted: Callable[[], None],
    ) -> None:
        """`check_wanted`: called when a check of a verdict is asked for (coordinator/training/review_loop.py)."""
        self._database = database
        self._leases = leases
        self._ledger = accounting.ledger
        self._accounts = accounting.accounts
        self._strikes = accounting.strikes
        self._ends = accounting.lease_ends
        self._vesting = accounting.vesting
        self._costs = accounting.costs
        self._quarantine = accounting.quarantine
        self.reviews = Reviews(database, self._ledger)
        self._classes = classes
        self.evidence = EvidenceTable(database)
        self._landings = DeviceLandings(database)
        self.near_ties = NearTieTable(database)
        self.version_pairs = VersionPairTable(database)
        self._seal = seal
        self._run = spec.run
        self._pay = pay_rule(spec.price_mode)
        self.receipts = Receipts(database, seal)
        self.scores = GroupScores(database)
        self.second = SecondVerdicts(
            database, accounting, self.receipts, self.scores, self.evidence, classes, self._pay
        )
        self.days = DoubtedDays(
            database, accounting, self.reviews, self.evidence, classes, check_wanted,
            self.receipts.end_quarantine,
        )  # fmt: skip
        self._tokens = TokenStorage(database)
        self.recent: deque[str] = deque(maxlen=RECENT_VERDICTS)
        self.recent_of: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT_VERDICTS))
        self.results = TaskResults(database)
        self._ends_of_turns = spec.ends
        self._check_wanted = check_wanted

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
        rewards = [score.reward for score in scores if score is not None]
        doubted = isinstance(basis, EvidenceStep) and basis.conclusion == "doubt"
        code, reason = _accepted_as(group, scores, doubted=doubted)
        young = lease.era == progress.era and fresh(progress.step, lease.version, self._leases.terms.staleness)
        trainable = young and code == "ok" and not group.spare
        lengths = lengths_of(lease, rollouts)
        total = self._pay.group_earnings(self._costs.now.costs, lengths)
        sampled = sum([sampled_tokens(one) for one in rollouts])
        given = sum([len(lease.prompt) + sum(turns) for turns in lengths.turns]) - sampled
        other = self._leases.audits.other(lease.id) if group.twins else None
        agrees = other is not None and other.agrees(rollouts)
        audited = "rerun" if other is not None and other.accepted and agrees else audited
        shown = (audited or audited_by(basis)) if sampled else ""
        earned = Earned(len(rollouts), given, sampled, total, trainable, shown, *lengths, self._costs.now.entry)
        end = outcome(group.record, group.at, group.hash, code, basis, earned)
        self._pay.fund(self._ledger, now, total)
        account = unvested_account if group.canary else quarantine_account if doubted else accrued_account
        place = self._append(now, "lease.accepted", end, total, account)
        if group.canary:
            self._vesting.put(lease.id, lease.node, total, VESTED_AFTER)
            self._leases.canaries.count("canaries agreed" if audited else "canaries scored")
        if group.canary or (other is not None and other.accepted):
            self._leases.audits.count(AUDIT_WORK, total)
        if group.owed:
            self._vesting.release(lease.node, now)
        if doubted:
            self._quarantine.put(lease.id, lease.node, total, now)
        learned = trainable and self._put_in_buffer(group, rewards, behaviour)
        self._count(group, rollouts, scores, end, late=not young)
        self._leases.accept(lease.id, learned=learned, share=group.share, twins=bool(group.twins))
        missing = {"ok": 1 - len(rewards) / len(rollouts), "task-score": 1.0}.get(code, 0.0)
        sealed = self._receipt(end, lease, place, "accepted", reason, now, missing)
        if other is not None:
            self._conclude([] if other.accepted else [(other.lease, other.code)], now, agrees=agrees)
        return sealed

    def _put_in_buffer(self, group: GroupAtVerdict, rewards: Sequence[float], behaviour: list[bytes]) -> bool:
        """Give a trainable group its place in the buffer; return whether it is learned from."""
        lease, varied = group.record.lease, len(set(rewards)) > 1
        signal = round(1_000_000 * signal_of(rewards))
        packed = msgspec.msgpack.encode(behaviour)
        row = (lease.id, lease.era, lease.version, group.at, varied, packed, group.position, signal)
        self._database.later("INSERT INTO buffer VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return varied or not self._leases.terms.refill

    def _count(
        self,
        group: GroupAtVerdict,
        rollouts: Sequence[ClaimedRollout],
        scores: Sequence[Score | None],
        end: LeaseOutcome,
        *,
        late: bool,
    ) -> None:
        """Count an accepted group in the results of its task."""
        lease, ok = group.record.lease, end.code == "ok"
        if ok and not group.spare:
            self._leases.timely.note(end.weight, late=late)
            if self._leases.positions.window.was_chosen(group.summary):
                rewards = [score.reward for score in scores if score is not None]
                figures = figures_of(group.party, lease.node, rewards)
                self._leases.positions.window.note(lease.task, lease.task_version, lease.index, figures)
        if group.spare and ok:
            self._leases.twins.note_spare()
        elif end.code in ("ok", "task-score"):
            cut = [bool(len(one.tokens)) and not is_end(int(one.tokens[-1]), self._ends_of_turns) for one in rollouts]
            lengths = [sampled_tokens(one) for one in rollouts]
            self._leases.lengths.note(lengths)
            self.results.add(lease.task, lease.task_version, sums_of(scores if ok else [], lengths, cut))

    def _conclude(self, refused: Sequence[tuple[bytes, str]], now: int, *, agrees: bool) -> None:
        """Count a pair of audited groups, the second of which is decided, and have refusals of groups that agree
        checked (audits.py, rules 6 and 7). `refused`: lease and code of those of the pair that were refused."""
        asked = [agrees and code in BY_PASS and self.reviews.ask(lease, "audit", now) for lease, code in refused]
        self._leases.audits.count(
            AUDITS_DIFFERED if not agrees else AUDITS_DOUBTING_SCORER if any(asked) else AUDITS_AGREED
        )
        if any(asked):
            self._check_wanted()

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
        at, digest = self._submission(lease.id, "at, hash")
        end = outcome(record, at, digest, code, basis)
        if self._leases.twins.is_canary(lease.id):
            self._leases.canaries.count("canaries refused")
        if isinstance(basis, EvidenceStep) and basis.stored:
            place = self._append(now, "lease.refused", end, 0)
        else:
            place = self._append_unpaid(now, "lease.refused", end, lease.node)
        self._leases.fail(lease.id, "decided", code, now)
        if sample is not None:
            self._tokens.decided_at(lease.id, sample, position, now)
        sealed = self._receipt(end, lease, place, "refused", reason, now)
        self._strikes.on_refusal(lease.node, code, end.submission_hash or bytes(32), now)
        other = self._leases.audits.other(lease.id) if code in BY_PASS else None
        (payload,) = self._submission(lease.id, "payload")
        if other is not None and payload is not None:
            pair = [(lease.id, code)] + [(other.lease, other.code)] * (not other.accepted)
            self._conclude(pair, now, agrees=other.agrees(decode_stored_group(payload).rollouts))
        return sealed

    def refuse_late(self, record: LeaseRecord, reason: str, now: int) -> bytes:
        """Refuse a group that came after the end of its lease (rule 4); return the sealed Receipt."""
        place = self._expire(record, now)
        end = outcome(record, now, self._digest(record.lease.id), "late")
        return self._receipt(end, record.lease, place, "refused", reason, now)

    def expire(self, now: int) -> int:
        """End at most `EXPIRED_AT_ONCE` open leases whose time has passed; return how many. Those beyond them take no
        room either, and a group for one of them is late."""
        due = self._leases.due(now, EXPIRED_AT_ONCE)
        with self._database.transaction():
            for lease in due:
                record = self._leases.find(lease)
                if record is not None:
                    self._expire(record, now)
        return len(due)

    def end_early(self, leases: Iterable[bytes], code: Early, now: int) -> None:
        """End open leases before their time."""
        with self._database.transaction():
            for lease in leases:
                self._leases.end_now(lease, now)
                record = self._leases.find(lease)
                if record is not None and record.state == "open":
                    self._expire(record, now, code)

    def _expire(self, record: LeaseRecord, now: int, code: Early | Literal["expired"] = "expired") -> LedgerPosition:
        lease = record.lease
        if record.state == "open":
            self._leases.fail(lease.id, "expired" if code == "expired" else "returned", code, now)
            end = outcome(record, None, self._digest(lease.id), code)
            return self._append_unpaid(now, "lease.expired", end, lease.node)
        place = self._place(lease.id)
        if place is None:
            raise LookupError(f"lease {lease.id.hex()} is {record.state}, and its end is not recorded")
        return place

    def forgotten(self, record: LeaseRecord) -> bool:
        """Tell whether a lease ended without a group, and its end was deleted (coordinator/accounts/lease_ends.py)."""
        return record.without_group and self._place(record.lease.id) is None

    def _place(self, lease: bytes) -> LedgerPosition | None:
        entry = self._ledger.find(key_of(lease))
        return self._ends.find(lease) if entry is None else LedgerPosition(entry.seq, entry.hash)

    def _append_unpaid(self, now: int, kind: str, end: LeaseOutcome, node: bytes) -> LedgerPosition:
        if end.code == "superseded" or self._accounts.of(node, now).rank == "new":
            return self._ends.put(end.lease, msgspec.msgpack.encode(end), now)
        return self._append(now, kind, end, 0)

    def _append(
        self, now: int, kind: str, end: LeaseOutcome, amount: int, account: Callable[[str], str] = accrued_account
    ) -> LedgerPosition:
        postings = self._pay.moves(ESCROW, account(end.node), amount)
        entry = self._ledger.append(now, kind, key_of(end.lease), end, postings, new=True)
        self._accounts.take(entry)
        return LedgerPosition(entry.seq, entry.hash)

    def _digest(self, lease: bytes) -> bytes | None:
        """Return the hash of a lease's submission; None: there is none."""
        digest: bytes | None = self._database.value("SELECT hash FROM submissions WHERE lease = ?", (lease,))
        return digest

    def _submission(self, lease: bytes, columns: str) -> tuple[Any, ...]:
        row = self._database.one(f"SELECT {columns} FROM submissions WHERE lease = ?", (lease,))
        if row is None:
            raise LookupError(f"nothing was received for lease {lease.hex()}")
        return row

    def _receipt(
        self,
        end: LeaseOutcome,
        lease: Lease,
        place: LedgerPosition,
        verdict: str,
        reason: str,
        now: int,
        missing: float = 0.0,
    ) -> bytes:
        """Seal and store a receipt. `missing`: see `recent_of`."""
        priced = self._leases.paid_work.price_of(lease.node) if verdict == "accepted" else None
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
        self.recent.append(end.code)
        self.recent_of[lease.task].append(missing)
        work = (end.trainable, end.weight, end.rollouts, end.tokens_in + end.tokens_out)
        self._database.later(
            "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (lease.id, lease.node, verdict, end.code, *work, place.entry or None, now, sealed),
        )
        if verdict == "refused":
            self._tokens.on_refusal(lease.id)
        return sealed


def _accepted_as(group: GroupAtVerdict, scores: Sequence[Score | None], *, doubted: bool) -> tuple[str, str]:
    """Return the code of an accepted group, and its reason (rules 5 and 6)."""
    if group.canary:
        return "canary", sentence("canary", groups=VESTED_AFTER)
    if doubted:
        return "quarantine", sentence("quarantine")
    if not scores:
        return "task-score", sentence("task-score")
    return "ok", ""
