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
   A day in quarantine that did not end well is run again (`rerun`): its groups are bet against the Calibration that
   took the place of theirs, if there is one, and the re-run agrees with the node if that ends well.
   When its quarantine has ended, the group's Receipt is sealed anew with the code that says how: `quarantine-paid` or
   `quarantine-unpaid`. All else in it stays, its entry too.
   A canary is accepted under the code `canary`: never trainable, and its weight is kept in `unvested` until further
   groups of its key are accepted (coordinator/accounts/vesting.py). Its entry says so if its answer agreed (`audited`),
   and so does that of a group which agrees with an accepted one of another node (audits.py).
7. The near-ties of groups of an exact class are counted per key and party (coordinator/verification/near_ties.py).
8. A verdict may be checked again and reversed (coordinator/rollouts/reviews.py, coordinator/accounts/reversals.py).
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

from coordinator.accounts import reversals
from coordinator.accounts.accounting import Accounting
from coordinator.accounts.lease_ends import LedgerPosition
from coordinator.accounts.ledger import ESCROW, Entry, accrued, quarantined, transfer, unvested
from coordinator.accounts.ledger_facts import VERDICT_RULES, LeaseReversed, counts_as_audited
from coordinator.accounts.pay import pay_rule
from coordinator.accounts.quarantine import Outcome
from coordinator.database import Database, marks
from coordinator.learner.advantages import signal_of
from coordinator.learner.age import fresh
from coordinator.metrics.pass_rates import PromptAnswers
from coordinator.rollouts.audit_pairs import AGREED, DIFFERED, DOUBTED, WORK
from coordinator.rollouts.canaries import VESTED_AFTER
from coordinator.rollouts.lease_rows import LeaseRecord
from coordinator.rollouts.lease_table import Early, LeaseTable, Seal
from coordinator.rollouts.lease_terms import Progress
from coordinator.rollouts.partial_verdicts import FINISHED_TOKENS, TALLY
from coordinator.rollouts.prompt_records import figures_of
from coordinator.rollouts.reviews import BY_PASS, LOST, Reviews
from coordinator.rollouts.submitted_group import ClaimedRollout, decode_stored_group
from coordinator.rollouts.task_results import TaskResults, sums_of
from coordinator.rollouts.token_storage import WINDOW, TokenStorage
from coordinator.rollouts.verification import Verdict, is_learnable, sampled_tokens
from coordinator.verification.evidence import MOST_PEAK
from coordinator.verification.evidence_table import EvidenceStep, EvidenceTable
from coordinator.verification.near_tie_table import NearTieTable
from coordinator.verification.near_ties import NearTieCount
from coordinator.verification.open_classes import OpenClasses
from coordinator.verification.token_evidence import RAISING, TokenArray
from coordinator.verification.version_pair_table import VersionPairTable
from p2p.envelope import decode_unverified
from p2p.identity import peer_id
from p2p.wire_types import decode, encode
from protocol.authority import RunSpec
from protocol.group_weights import GroupLengths
from protocol.leases import Lease, Receipt
from protocol.refusals import sentence
from runtime.units import DAY
from tasks.task import Score
from tasks.turn_ends import is_end

ACCEPTED = ("ok", "heldout", "task-score", "quarantine", "canary")
"""Codes of accepted groups."""
RECENT = 200
"""Decided groups whose codes are remembered."""
EXPIRED_AT_ONCE = 64
"""Most leases that end in one call: few enough that no request is delayed, even if thousands of nodes leave."""
STALE = (
    "with the node's groups before it, more tokens are those of the version before than an honest node's would be but"
    " for a chance of one in a million"
)
MOST_RERUN = 1 << 19
"""Most tokens of a day that are run again, at some 80 ms per 16,384 tokens: no request waits long."""
_QUARANTINED = (
    "SELECT q.lease, v.at, l.document FROM quarantine q JOIN verdicts v ON v.lease = q.lease"
    " JOIN leases l ON l.id = q.lease WHERE q.node = ? AND q.day = ? ORDER BY v.rowid"
)
_REFUSED_SINCE = (
    "SELECT 1 FROM leases l JOIN verdicts v ON v.lease = l.id"
    " WHERE l.node = ? AND l.sent >= ? AND v.at >= ? AND v.code IN ('evidence', 'version-lie') LIMIT 1"
)
MOST_REASON = 300
"""Most characters of a receipt's reason: a receipt stays under 1 KB."""


class LeaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a ledger entry about the end of a lease. Times in ms, `weight` in milli-RE. `audited`: how the group
    was audited: "exact", by T1 and T2 in an exact class; "evidence", in another class, with the evidence against its
    node below `AUDITED` after it; "canary", equal to a known answer; "rerun", equal to an accepted group of another
    node; empty: it was not (accounts/audited_work.py).
    `prompt`, `turns`, `begun`: of an accepted group, its GroupLengths. `costs`: number of the entry by whose Costs its
    weight was computed; 0: by none (accounts/cost_tables.py)."""

    node: str
    lease: bytes
    era: int
    version: int
    sent: int
    expires: int
    received: int | None
    code: str
    rollouts: int
    tokens_in: int
    tokens_out: int
    weight: int
    trainable: bool
    submission_hash: bytes | None
    rules: int = 1
    audited: str = ""
    prompt: int = 0
    turns: list[list[int]] = []
    begun: list[int] = []
    costs: int = 0


class EvidencedOutcome(LeaseOutcome, frozen=True, kw_only=True):
    """The end of a lease that names a Calibration: with its hash, those of `EvidenceHashes`, and the day's peak of E
    (coordinator/verification/evidence_table.py, rule 3)."""

    calibration: bytes
    tokens: bytes
    before: bytes
    after: bytes
    peak: int


class PairedOutcome(EvidencedOutcome, frozen=True, kw_only=True):
    """The end of a lease whose group was passed twice: with its `VersionCount`."""

    newer: int
    older: int


class _Peak(msgspec.Struct, frozen=True):
    """The peak of an EvidencedOutcome; of one of an earlier version 0."""

    peak: int = 0


class CountedOutcome(LeaseOutcome, frozen=True, kw_only=True):
    """The end of a lease of an exact class, by a group that is good in itself: with its `NearTieCount`."""

    sampled: int
    near_ties: int


class _Stated(NamedTuple):
    """A verdict, as its row states it."""

    node: bytes
    verdict: str
    code: str
    weight: int


Stating = TypeVar("Stating", LeaseOutcome, LeaseReversed)
Basis = EvidenceStep | NearTieCount
"""The evidence that a verdict counts, or the near-ties."""


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
        self._quarantine.rerun, self._quarantine.ended = self.rerun, self._end_quarantine
        self._quarantine.check, self._quarantine.waits = self.check_day, self.check_is_waited_for
        self.reviews = Reviews(database, self._ledger)
        self._classes = classes
        self.evidence = EvidenceTable(database)
        self.near_ties = NearTieTable(database)
        self.version_pairs = VersionPairTable(database)
        self._run_again: dict[tuple[bytes, int], bytes] = {}
        """By key and day in quarantine, the newest Calibration when its groups were run again last; empty: none."""
        self._seal = seal
        self._run = spec.run
        self._pay = pay_rule(spec.price_mode)
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
            known = self.receipt(lease)
            if known is not None:
                return known
            record = self._leases.find(lease)
            if record is None or record.state != "received":
                raise LookupError(f"no group was received for lease {lease.hex()}")
            basis = verdict.ties or self._bet(record.lease, verdict, now)
            code = self._blamed(record.lease, basis, now)
            if code:
                return self.refuse(record, code, _sentence(code, record.lease, verdict.ties), now, basis)
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

    def in_doubt(self, node: bytes) -> bool:
        """Tell whether the evidence against a key, as it stands after its last group, is in doubt."""
        return self.evidence.of(node).conclusion() != "honest"

    def ended_badly(self, node: bytes, day: int) -> bool:
        """Tell whether a key's day in quarantine did not end well (coordinator/verification/evidence.py, rule 9). The
        evidence is that after the key's last group. Once a check of the day was asked for, it stays so: the evidence
        moves on while the check waits."""
        first = self._quarantine.first(node, day)
        if first is not None and self.reviews.find(first, "audit") is not None:
            return True
        leases = self._quarantine.leases(node, day)
        return self.in_doubt(node) or max(map(self._peak, leases), default=0) >= MOST_PEAK

    def check_is_waited_for(self, node: bytes, day: int, now: int) -> bool:
        """Tell whether nothing new is known of a day whose check was asked for: that is not answered, may still be in
        time, and no Calibration came by which the day was not run again."""
        first = self._quarantine.first(node, day) if _in_time(day, now) else None
        if first is None or self._run_again.get((node, day), b"") != self._newer_calibration(first):
            return False
        reviews = self.reviews.of(first)
        return any(one.by == "audit" for one in reviews) and all(one.state != "answered" for one in reviews)

    def _newer_calibration(self, lease: bytes) -> bytes:
        """Return the hash of the Calibration that took the place of that of a lease; empty: there is none."""
        document: bytes = self._database.value("SELECT document FROM leases WHERE id = ?", (lease,))
        return self._classes.newer(decode(document, Lease).calibration or b"") or b""

    def check_day(self, node: bytes, day: int, now: int) -> Outcome:
        """Tell what a second check of the group says that began a day's doubt, and ask for it
        (coordinator/accounts/quarantine.py, rule 4)."""
        first, in_time = self._quarantine.leases(node, day)[0], _in_time(day, now)
        answered = [one for one in self.reviews.of(first) if one.state == "answered"]
        if answered:
            return "cleared" if answered[-1].code == "ok" else "confirmed"
        if in_time and self.reviews.find(first, "audit") is None and self.reviews.ask(first, "audit", now):
            self.check_wanted()
        return "waits" if in_time and self.reviews.of(first) else "none"

    def _peak(self, lease: bytes) -> int:
        entry = self._ledger.find(_key(lease))
        return 0 if entry is None else msgspec.msgpack.decode(entry.facts, type=_Peak).peak

    def rerun(self, node: bytes, day: int) -> bytes | None:
        """Run the groups of a key in quarantine on a day again (rule 6); return the hash of the Calibration by which
        they agree with the node; empty: they do not, or tokens are no longer stored. None: they are not run, as no
        Calibration is newer, or they are too many, or the evidence has refused a group of the key since that day began:
        those in quarantine alone do not tell how the day went."""
        first = self._quarantine.first(node, day)
        self._run_again = {key: by for key, by in self._run_again.items() if key[1] >= day - 2}
        self._run_again[node, day] = b"" if first is None else self._newer_calibration(first)
        if self._database.one(_REFUSED_SINCE, (node, (day - 1) * DAY, day * DAY)) is not None:
            return None
        groups = [
            (lease, at, decode(document, Lease).calibration)
            for lease, at, document in self._database.all(_QUARANTINED, (node, day))
        ]
        (newer, *others) = {self._classes.newer(calibration or b"") for _, _, calibration in groups} or {None}
        tables = None if newer is None else self._classes.tables(newer)
        if newer is None or tables is None or others or self.evidence.tokens_kept(node, day) > MOST_RERUN:
            return None
        again = self.evidence.run_anew([(lease, at) for lease, at, _ in groups], tables)
        return newer if again is not None and again.ended_well else b""

    def _end_quarantine(self, lease: bytes, paid: bool, now: int) -> None:
        """Put a Receipt that says how a group's quarantine ended in the place of the first one (rule 6)."""
        code = "quarantine-paid" if paid else "quarantine-unpaid"
        reason = sentence("quarantine-paid") if paid else sentence("quarantine-unpaid")
        self._reseal_as(code, reason, lease, now)

    def _reseal_as(self, code: str, reason: str, lease: bytes, now: int) -> None:
        """Seal the Receipt of a lease anew with another code and reason; all else in it stays."""
        sealed = self.receipt(lease)
        if sealed is None:
            raise LookupError(f"lease {lease.hex()} has no Receipt")
        first = decode(decode_unverified(sealed).payload, Receipt)
        reason = reason[:MOST_REASON]
        sealed = self._seal("receipt", encode(msgspec.structs.replace(first, code=code, reason=reason, at=now)))
        self._database.do("UPDATE verdicts SET receipt = ? WHERE lease = ?", (sealed, lease))

    def _bet(self, lease: Lease, verdict: Verdict, now: int) -> EvidenceStep | None:
        """Move the evidence against a node on by the tokens of its group (rule 6); None where the class is exact."""
        tables = None if lease.calibration is None else self._classes.tables(lease.calibration)
        if verdict.compared is None or tables is None:
            return None
        self._quarantine.settle_key(lease.node, self.ended_badly, now)
        joined = self._joined(lease.id, verdict.compared)
        versions = verdict.versions
        stale = versions is not None and self.version_pairs.refuses(lease.node, versions, now)
        refused = verdict.behaviour is None or stale
        kept = self._quarantine.keeps(lease.node, now)
        step = self.evidence.take(lease.node, lease.id, joined, tables, now, refused=refused, kept=kept)
        if versions is not None and step.stored:
            self.version_pairs.put(lease.node, versions, now)
        return step._replace(versions=versions, stale=stale)

    def _joined(self, lease: bytes, compared: dict[int, TokenArray]) -> TokenArray:
        """Return the compared tokens of a group in their order, with `RAISING` set."""
        rewards = [score.reward for score in self._scores(lease)]
        average = sum(rewards) / max(1, len(rewards))
        for number, tokens in compared.items():
            tokens["flags"] |= RAISING * (number < len(rewards) and rewards[number] > average)
        return np.concatenate([compared[number] for number in sorted(compared)])

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
            joined = self._joined(lease.id, verdict.compared)
            conclusion = self.evidence.conclude(lease.id, joined, tables, at)
            if conclusion is None:
                return LOST, "the evidence before the group is no longer stored"
            if conclusion == "refusal" or first == "version-lie":
                return first, sentence("evidence") if conclusion == "refusal" else STALE
            return ("quarantine", sentence("quarantine")) if conclusion == "doubt" else ("ok", "")
        ties = verdict.ties
        if first.endswith("near-ties") and ties is not None and ties.near_ties:
            return first, _sentence(first, lease, ties)
        return verdict.code, verdict.reason

    def reverse(self, lease: bytes, by: str, why: str, now: int) -> Entry:
        """Reverse the verdict of a lease (coordinator/accounts/reversals.py); return the entry. Raises `LookupError`
        with the reason where that cannot be done."""
        end = self._stated(lease)
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
        weight = end.weight if lengths is None else self._pay.earned(self._costs.now.costs, lengths)
        fact = LeaseReversed(
            node=peer_id(end.node), lease=lease, code=end.code, paid=paid, weight=weight,
            audited=paid or self._was_audited(lease), by=by, why=why[:MOST_REASON],
        )  # fmt: skip
        fact = fact if lengths is None else self._with_lengths(fact, lengths)
        with self._database.transaction():
            if paid:
                self._pay.fund(self._ledger, now, weight)
            entry = reversals.reverse(self._ledger, self._accounts, fact, now)
            reason = sentence("reversed-paid", why=why) if paid else sentence("reversed-unpaid", why=why)
            self._reseal_as("reversed-paid" if paid else "reversed-unpaid", reason, lease, now)
        return entry

    def _stated(self, lease: bytes) -> "_Stated":
        row = self._database.one("SELECT node, verdict, code, weight FROM verdicts WHERE lease = ?", (lease,))
        if row is None:
            raise LookupError("there is no verdict on this lease")
        return _Stated(*row)

    def _was_audited(self, lease: bytes) -> bool:
        entry = self._ledger.find(_key(lease))
        return entry is not None and counts_as_audited(entry)

    def _lengths_of(self, lease: bytes) -> GroupLengths:
        """Return the lengths of a refused group. Raises `LookupError`."""
        row = self._database.one(
            "SELECT l.document, s.payload FROM leases l JOIN submissions s ON s.lease = l.id WHERE l.id = ?", (lease,)
        )
        if row is None or row[1] is None:
            raise LookupError("its group is no longer stored, so its weight is not known")
        return _lengths(decode(row[0], Lease), decode_stored_group(row[1]).rollouts)

    def _with_lengths(self, fact: Stating, lengths: GroupLengths) -> Stating:
        """Return a fact with what its weight was computed from."""
        return msgspec.structs.replace(fact, **lengths._asdict(), costs=self._costs.now.entry)

    def reward(self, lease: bytes, scores: Sequence[Score]) -> None:
        """Store the scores of a group that its environment gave, before the group is decided. Empty: an episode
        failed."""
        packed = msgspec.msgpack.encode(list(scores))
        self._database.do("INSERT OR REPLACE INTO episode_scores VALUES (?, ?)", (lease, packed))

    def _scores(self, lease: bytes) -> list[Score]:
        """Return the scores of a group; none for one of an environment that was not rewarded."""
        packed = self._database.value(
            "SELECT coalesce(s.scores, e.scores) FROM submissions s LEFT JOIN episode_scores e ON e.lease = s.lease"
            " WHERE s.lease = ?",
            (lease,),
        )
        return [] if packed is None else msgspec.msgpack.decode(packed, type=list[Score])

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
        (at,), scores = self._submission(lease.id, "at"), self._scores(lease.id)
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
        lengths = _lengths(lease, rollouts)
        begun = lengths.begun
        total = self._pay.earned(self._costs.now.costs, lengths)
        sampled = sum(map(sampled_tokens, rollouts)) - sum(begun)
        given = sum(len(lease.prompt) + sum(turns) for turns in lengths.turns) - sampled - sum(begun)
        end = self._end(record, at, code, len(rollouts), given, sampled, total, trainable)
        other = self._leases.audits.other(lease.id)
        agrees = other is not None and other.agrees(rollouts)
        audited = "rerun" if other is not None and other.accepted and agrees else audited
        shown = (audited or _audited(basis)) if sampled or begun else ""
        end = self._with_lengths(end, lengths)
        end = msgspec.structs.replace(_with_basis(end, lease, basis), audited=shown)
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
        end = _with_basis(end, lease, basis)
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
        entry = self._ledger.find(_key(lease))
        return self._ends.find(lease) if entry is None else LedgerPosition(entry.seq, entry.hash)

    def receipt(self, lease: bytes) -> bytes | None:
        """Return the sealed Receipt of a lease; None if there is none yet."""
        receipt: bytes | None = self._database.value("SELECT receipt FROM verdicts WHERE lease = ?", (lease,))
        return receipt

    def confirm(self, node: bytes, leases: Sequence[bytes]) -> None:
        """Note that the node has stored the receipts of these leases durably."""
        query = f"UPDATE verdicts SET confirmed = 1 WHERE lease IN ({marks(leases)}) AND node = ? AND confirmed = 0"
        self._database.do(query, (*leases, node))

    def _append_unpaid(self, now: int, kind: str, end: LeaseOutcome, node: bytes) -> LedgerPosition:
        if end.code == "superseded" or self._accounts.of(node, now).rank == "new":
            return self._ends.put(end.lease, msgspec.msgpack.encode(end), now)
        return self._append(now, kind, end, 0)

    def _append(
        self, now: int, kind: str, end: LeaseOutcome, amount: int, account: Callable[[str], str] = accrued
    ) -> LedgerPosition:
        postings = transfer(ESCROW, account(end.node), amount)
        entry = self._ledger.append(now, kind, _key(end.lease), end, postings)
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


def _sentence(code: str, lease: Lease, ties: NearTieCount | None) -> str:
    """Return the sentence of a group that is refused with its node's groups before it."""
    if code == "version-lie":
        return sentence(code, era=lease.era, version=lease.version, detail=STALE)
    ties = ties or NearTieCount(0, 0)
    return sentence(code, tokens=ties.sampled, count=ties.near_ties)


def _lengths(lease: Lease, rollouts: Sequence[ClaimedRollout]) -> GroupLengths:
    """Return the lengths of a group that was submitted for a lease."""
    begun = [len(tokens) for tokens in lease.begun]
    return GroupLengths(len(lease.prompt), [list(rollout.turns) for rollout in rollouts], begun)


def _audited(basis: Basis | None) -> str:
    """Return how an accepted group was audited; empty: it was not."""
    if not isinstance(basis, EvidenceStep):
        return "exact"
    return "evidence" if basis.low else ""


def _with_basis(end: LeaseOutcome, lease: Lease, basis: Basis | None) -> LeaseOutcome:
    stated = msgspec.structs.asdict(end)
    if isinstance(basis, EvidenceStep):
        stated |= {"calibration": lease.calibration or b"", **basis.hashes._asdict(), "peak": basis.peak}
        return (
            EvidencedOutcome(**stated)
            if basis.versions is None
            else PairedOutcome(**stated, **basis.versions._asdict())
        )
    if basis is None:
        return end
    stated |= basis._asdict()
    return CountedOutcome(**stated)


def _in_time(day: int, now: int) -> bool:
    """Tell whether the check of a day that has ended may still decide it, at `now`, ms."""
    return now < (day + 1) * DAY + WINDOW


def _key(lease: bytes) -> str:
    return f"lease:{lease.hex()}"
