"""Verdicts: the end of a lease, in one transaction with its ledger entry, its receipt and its place in the buffer.

Rules
1. A lease ends once: accepted, refused or expired, and is paid at most once. It expires before its time where it is
   superseded (superseded_leases.py) or given back. If its reported tokens go on to another node, it ends as `moved`,
   and they are paid or refused by an entry of their own (partial_verdicts.py). The ledger has one entry for it (key
   "lease:<id>"). A new key's lease that earned nothing, and any key's that is superseded, shares an entry with others
   instead (coordinator/accounts/lease_ends.py).
2. A group received before its lease expired is judged by its own content alone. If it is good it is paid. It is
   trainable iff its era is the learner's and step - version <= S at the verdict, and no twin of it is in the buffer
   (twin_sets.py); the buffer's draw checks the age again.
3. An accepted group earns by the pay rule of the run's price mode (coordinator/accounts/pay.py); without what another
   node has earned by its first tokens (moving.py, rule 6). A rollout without a sampled token, whose environment failed
   to open it, earns nothing. A group without any is not audited work: nothing was computed for it.
4. A group that comes too late is refused, with a receipt that refers to the lease's expiry in the ledger.
5. A good group for which the task gave no finite reward is accepted and paid under the code `task-score`. It is not
   trainable: it never enters the buffer. Nor does a good held-out group, whose code is `heldout`: it counts in its
   version's evaluation (heldout_plans.py).
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
7. The near-ties of groups of an exact class are counted per key and party (coordinator/verification/near_ties.py).
   In a run with a market its Receipt names the epoch that is open and the node's price in it.
8. A verdict may be checked again and reversed (reviews.py, second_verdicts.py).
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from coordinator.accounts.accounting import Accounting
from coordinator.accounts.lease_ends import LedgerPosition
from coordinator.accounts.ledger import ESCROW, accrued, quarantined, unvested
from coordinator.accounts.ledger_facts import VERDICT_RULES
from coordinator.accounts.pay import pay_rule
from coordinator.database import Database
from coordinator.learner.advantages import signal_of
from coordinator.learner.age import fresh
from coordinator.metrics.pass_rates import PromptAnswers
from coordinator.rollouts.audit_pairs import AGREED, DIFFERED, DOUBTED, WORK
from coordinator.rollouts.canaries import VESTED_AFTER
from coordinator.rollouts.doubted_days import DoubtedDays
from coordinator.rollouts.group_scores import GroupScores
from coordinator.rollouts.lease_outcomes import Basis, LeaseOutcome, audited_by, key_of, lengths_of, with_basis
from coordinator.rollouts.lease_rows import LeaseRecord
from coordinator.rollouts.lease_table import Early, LeaseTable, Seal
from coordinator.rollouts.lease_terms import Progress
from coordinator.rollouts.partial_verdicts import FINISHED_TOKENS, TALLY
from coordinator.rollouts.prompt_records import figures_of
from coordinator.rollouts.reviews import BY_PASS, Reviews
from coordinator.rollouts.second_verdicts import SecondVerdicts, sentence_by_groups
from coordinator.rollouts.stored_receipts import MOST_REASON, Receipts
from coordinator.rollouts.submitted_group import ClaimedRollout, decode_stored_group
from coordinator.rollouts.task_results import TaskResults, sums_of
from coordinator.rollouts.token_storage import TokenStorage
from coordinator.rollouts.verification import Verdict, is_learnable, sampled_tokens
from coordinator.verification.evidence_table import EvidenceStep, EvidenceTable
from coordinator.verification.near_tie_table import NearTieTable
from coordinator.verification.near_ties import NearTieCount
from coordinator.verification.open_classes import OpenClasses
from coordinator.verification.version_pair_table import VersionPairTable
from p2p.identity import peer_id
from p2p.wire_types import encode
from protocol.authority import RunSpec
from protocol.leases import Lease, Receipt
from protocol.refusals import sentence
from tasks.turn_ends import is_end

ACCEPTED = ("ok", "heldout", "task-score", "quarantine", "canary")
"""Codes of accepted groups."""
RECENT = 200
"""Decided groups whose codes are remembered."""
EXPIRED_AT_ONCE = 64
"""Most leases that end in one call: few enough that no request is delayed, even if thousands of nodes leave."""


class VerdictService:
    """The ends of leases, by verdicts and expiries. `recent`: codes of the groups decided last, at most `RECENT`, since
    the process started. `recent_of`: the same of each task's."""

    def __init__(
        self,
        database: Database,
        leases: LeaseTable,
        accounting: Accounting,
        seal: Seal,
        spec: RunSpec,
        classes: OpenClasses,
    ) -> None:
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
        self.days = DoubtedDays(database, accounting, self.reviews, self.evidence, classes, lambda: self.check_wanted())
        self._quarantine.ended = self.receipts.end_quarantine
        self._tokens = TokenStorage(database)
        self.recent: deque[str] = deque(maxlen=RECENT)
        self.recent_of: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=RECENT))
        self.results = TaskResults(database)
        self._ends_of_turns = spec.ends
        self.check_wanted: Callable[[], None] = lambda: None
        """Called when a check of a verdict is asked for (coordinator/training/review_loop.py)."""

    def decide(
        self, lease: bytes, rollouts: Sequence[ClaimedRollout], verdict: Verdict, progress: Progress, now: int
    ) -> bytes:
        """Decide a received group; return its sealed Receipt, the stored one if it was decided before. `rollouts`: of
        the group. Raises `LookupError` for a lease without a received group."""
        with self._database.transaction():
            known = self.receipts.of(lease)
            if known is not None:
                return known
            record = self._leases.find(lease)
            if record is None or record.state != "received":
                raise LookupError(f"no group was received for lease {lease.hex()}")
            basis = verdict.ties or self._bet(record.lease, verdict, now)
            code = self._blamed(record.lease, basis, now)
            if code:
                return self.refuse(record, code, sentence_by_groups(code, record.lease, verdict.ties), now, basis)
            if verdict.behaviour is None:
                place = verdict.sample, verdict.position
                return self.refuse(record, verdict.code, verdict.reason, now, basis, *place)
            return self._accept(record, rollouts, verdict.behaviour, progress, now, basis, verdict.audited)

    def _blamed(self, lease: Lease, basis: Basis | None, now: int) -> str:
        """Return the code under which a group is refused by its node's groups so far; empty: it is not."""
        if isinstance(basis, NearTieCount):
            return self.near_ties.take(lease.node, lease.id, basis, now)
        if basis is None:
            return ""
        return "evidence" if basis.conclusion == "refusal" else "version-lie" if basis.stale else ""

    def _bet(self, lease: Lease, verdict: Verdict, now: int) -> EvidenceStep | None:
        """Move the evidence against a node on by the tokens of its group (rule 6); None where the class is exact."""
        tables = None if lease.calibration is None else self._classes.tables(lease.calibration)
        if verdict.compared is None or tables is None:
            return None
        self._quarantine.settle_key(lease.node, self.days.ended_badly, now)
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
        record: LeaseRecord,
        rollouts: Sequence[ClaimedRollout],
        behaviour: list[bytes],
        progress: Progress,
        now: int,
        basis: Basis | None,
        audited: str,
    ) -> bytes:
        lease = record.lease
        (at,), scores = self._submission(lease.id, "at"), self.scores.of(lease.id)
        code, reason = ("ok", "") if is_learnable(scores) else ("task-score", sentence("task-score"))
        doubted = isinstance(basis, EvidenceStep) and basis.conclusion == "doubt"
        if doubted:
            code, reason = "quarantine", sentence("quarantine")
        if code == "ok" and lease.split == "heldout":
            code, reason = "heldout", sentence("heldout")
        canary = self._leases.twins.is_canary(lease.id)
        if canary:
            code, reason = "canary", sentence("canary", groups=VESTED_AFTER)
        young = lease.era == progress.era and fresh(progress.step, lease.version, self._leases.terms.staleness)
        spare = self._leases.twins.is_learned(lease.id)
        trainable = young and code == "ok" and not spare
        lengths = lengths_of(lease, rollouts)
        begun = lengths.begun
        total = self._pay.earned(self._costs.now.costs, lengths)
        sampled = sum(map(sampled_tokens, rollouts)) - sum(begun)
        given = sum(len(lease.prompt) + sum(turns) for turns in lengths.turns) - sampled - sum(begun)
        end = self._end(record, at, code, len(rollouts), given, sampled, total, trainable)
        other = self._leases.audits.other(lease.id)
        agrees = other is not None and other.agrees(rollouts)
        audited = "rerun" if other is not None and other.accepted and agrees else audited
        shown = (audited or audited_by(basis)) if sampled or begun else ""
        end = msgspec.structs.replace(end, **lengths._asdict(), costs=self._costs.now.entry)
        end = msgspec.structs.replace(with_basis(end, lease, basis), audited=shown)
        self._pay.fund(self._ledger, now, total)
        account = unvested if canary else quarantined if doubted else accrued
        place = self._append(now, "lease.accepted", end, total, account)
        if canary:
            self._vesting.put(lease.id, lease.node, total, VESTED_AFTER)
            self._leases.canaries.count("canaries agreed" if audited else "canaries scored")
        if canary or (other is not None and other.accepted):
            self._leases.audits.count(WORK, total)
        self._vesting.release(lease.node, now)
        if doubted:
            self._quarantine.put(lease.id, lease.node, total, now)
        if code == "ok" and not spare:
            self._leases.timely.note(total, late=not young)
        learned = trainable
        if trainable:
            rewards = [score.reward for score in scores]
            varied, signal = len(set(rewards)) > 1, round(1_000_000 * signal_of(rewards))
            packed = msgspec.msgpack.encode(behaviour)
            self._database.do(
                "INSERT INTO buffer SELECT id, era, version, ?, ?, ?, position, ? FROM leases WHERE id = ?",
                (at, varied, packed, signal, lease.id),
            )
            learned = varied or not self._leases.terms.refill
        if lease.split == "heldout":
            answers = PromptAnswers(len(scores), sum(score.success for score in scores))
            self._leases.heldout.verdict(lease.id, answers if code == "heldout" else None)
        elif spare and code == "ok":
            self._leases.twins.note_spare()
        elif code in ("ok", "task-score"):
            lasts = [int(rollout.tokens[-1]) for rollout in rollouts if len(rollout.tokens)]
            cut = sum(not is_end(last, self._ends_of_turns) for last in lasts)
            self.results.add(lease.task, lease.task_version, sums_of(scores if code == "ok" else [], cut))
        if code == "ok" and not spare:
            self._note_prompt(lease, [score.reward for score in scores], sampled + sum(begun))
        if begun:
            self._database.do(TALLY, (FINISHED_TOKENS, sum(begun)))
        self._leases.accept(lease.id, learned=learned)
        sealed = self._receipt(end, lease, place, "accepted", reason, now)
        if other is not None:
            self._conclude([] if other.accepted else [(other.lease, other.code)], now, agrees=agrees)
        return sealed

    def _conclude(self, refused: Sequence[tuple[bytes, str]], now: int, *, agrees: bool) -> None:
        """Count a pair of audited groups, the second of which is decided, and have refusals of groups that agree
        checked (audits.py, rules 6 and 7). `refused`: lease and code of those of the pair that were refused."""
        asked = [agrees and code in BY_PASS and self.reviews.ask(lease, "audit", now) for lease, code in refused]
        self._leases.audits.count(DIFFERED if not agrees else DOUBTED if any(asked) else AGREED)
        if any(asked):
            self.check_wanted()

    def _note_prompt(self, lease: Lease, rewards: Sequence[float], sampled: int) -> None:
        """Note a group of a prompt that was chosen by its last groups (prompt_records.py, rule 1)."""
        group = figures_of(self._leases.party_of(lease.id), lease.node, rewards, sampled)
        self._leases.positions.window.note(lease.id, lease.task, lease.task_version, lease.index, group)

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
        `basis`: of a group that the scorer's pass compared. `sample`, `position`: the place that decided it. Evidence
        that is stored has an entry of its own, as the entries of a key are a chain."""
        lease = record.lease
        (at,) = self._submission(lease.id, "at")
        end = self._end(record, at, code)
        end = with_basis(end, lease, basis)
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
        self._strikes.refused(lease.node, code, end.submission_hash or bytes(32), now)
        other = self._leases.audits.other(lease.id) if code in BY_PASS else None
        (payload,) = self._submission(lease.id, "payload")
        if other is not None and payload is not None:
            pair = [(lease.id, code)] + [(other.lease, other.code)] * (not other.accepted)
            self._conclude(pair, now, agrees=other.agrees(decode_stored_group(payload).rollouts))
        return sealed

    def refuse_late(self, record: LeaseRecord, reason: str, now: int) -> bytes:
        """Refuse a group that came after the end of its lease (rule 4); return the sealed Receipt."""
        place = self._expire(record, now)
        return self._receipt(self._end(record, now, "late"), record.lease, place, "refused", reason, now)

    def expire(self, now: int, most: int = EXPIRED_AT_ONCE) -> int:
        """End at most `most` open leases whose time has passed; return how many. Leases beyond `most` take no room
        either, and a group for one of them is late."""
        due = self._leases.due(now, most)
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
            moved = self._leases.fail(lease.id, "expired", code, now)
            end = self._end(record, None, "moved" if moved else code)
            return self._append_unpaid(now, "lease.expired", end, lease.node)
        place = self._place(lease.id)
        if place is None:
            raise LookupError(f"lease {lease.id.hex()} is {record.state}, and its end is not recorded")
        return place

    def forgotten(self, record: LeaseRecord) -> bool:
        """Tell whether a lease expired so long ago that its end was deleted (coordinator/accounts/lease_ends.py)."""
        return record.state == "expired" and self._place(record.lease.id) is None

    def _place(self, lease: bytes) -> LedgerPosition | None:
        entry = self._ledger.find(key_of(lease))
        return self._ends.find(lease) if entry is None else LedgerPosition(entry.seq, entry.hash)

    def _append_unpaid(self, now: int, kind: str, end: LeaseOutcome, node: bytes) -> LedgerPosition:
        if end.code == "superseded" or self._accounts.of(node, now).rank == "new":
            return self._ends.put(end.lease, msgspec.msgpack.encode(end), now)
        return self._append(now, kind, end, 0)

    def _append(
        self, now: int, kind: str, end: LeaseOutcome, amount: int, account: Callable[[str], str] = accrued
    ) -> LedgerPosition:
        postings = self._pay.moves(ESCROW, account(end.node), amount)
        entry = self._ledger.append(now, kind, key_of(end.lease), end, postings)
        self._accounts.take(entry)
        return LedgerPosition(entry.seq, entry.hash)

    def _submission(self, lease: bytes, columns: str) -> tuple[Any, ...]:
        row = self._database.one(f"SELECT {columns} FROM submissions WHERE lease = ?", (lease,))
        if row is None:
            raise LookupError(f"nothing was received for lease {lease.hex()}")
        return row

    def _end(
        self,
        record: LeaseRecord,
        received: int | None,
        code: str,
        rollouts: int = 0,
        tokens_in: int = 0,
        tokens_out: int = 0,
        total: int = 0,
        trainable: bool = False,
    ) -> LeaseOutcome:
        lease = record.lease
        return LeaseOutcome(
            node=peer_id(lease.node),
            lease=lease.id,
            era=lease.era,
            version=lease.version,
            sent=lease.sent,
            expires=record.expires,
            received=received,
            code=code,
            rollouts=rollouts,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            weight=total,
            trainable=trainable,
            submission_hash=self._database.value("SELECT hash FROM submissions WHERE lease = ?", (lease.id,)),
            rules=VERDICT_RULES,
        )

    def _receipt(
        self, end: LeaseOutcome, lease: Lease, place: LedgerPosition, verdict: str, reason: str, now: int
    ) -> bytes:
        priced = self._leases.paid_work.priced(lease.node) if verdict == "accepted" else None
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
        self.recent_of[lease.task].append(end.code)
        work = (end.trainable, end.weight, end.rollouts, end.tokens_in + end.tokens_out)
        self._database.do(
            "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (lease.id, lease.node, verdict, end.code, *work, place.entry or None, now, sealed),
        )
        if verdict == "refused":
            self._tokens.refused(lease.id)
        return sealed
