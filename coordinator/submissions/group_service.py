"""The life of groups behind one object, which composes the durable tables and the rules about rollouts for the daemon.

    lease -> (step) -> submit -> undecided -> (the scorer) -> decide -> draw -> (the learner)

The rules stand in the parts: lease_issuer, lease_table, submissions, verification, verdicts and replay_buffer in
coordinator/leases, submissions, verification and verdicts, ledger and node_registry in coordinator/accounts. There is
no network, torch or clock here; `now` is milliseconds since the Unix epoch.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec
import structlog

from echo2.coordinator.accounts import reversals
from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.decided import OnDecided
from echo2.coordinator.accounts.pay import pay_rule
from echo2.coordinator.learner.age import oldest_fresh
from echo2.coordinator.leases.busy_nodes import BusyNodes
from echo2.coordinator.leases.kinds.audit_leases import AuditLeases
from echo2.coordinator.leases.kinds.audit_pairs import AuditPairs
from echo2.coordinator.leases.kinds.canary_answers import CanaryAnswers, WantedAnswer
from echo2.coordinator.leases.kinds.canary_leases import CanaryLeases
from echo2.coordinator.leases.kinds.plain_leases import PlainLeases
from echo2.coordinator.leases.lease_issuer import LeaseIssuer
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.lease_terms import LeaseTerms, Progress
from echo2.coordinator.leases.lease_writer import LeaseKind, LeaseWriter
from echo2.coordinator.leases.paid_work import AllWork, PaidWork
from echo2.coordinator.leases.rollout_context import Entropy, RolloutContext, Sealing
from echo2.coordinator.leases.superseded_leases import (
    RecalledLeases,
    VersionLoad,
    WaitingReports,
    any_beyond,
    to_recall,
)
from echo2.coordinator.settings.config import EnvironmentSection
from echo2.coordinator.submissions.episode_record import EpisodeRecords
from echo2.coordinator.submissions.run_records import RunRecords
from echo2.coordinator.submissions.step_service import StepService
from echo2.coordinator.submissions.submissions import SubmissionService
from echo2.coordinator.verdicts.doubted_days import ToCome, none_to_come
from echo2.coordinator.verdicts.draw_record import record_draw
from echo2.coordinator.verdicts.group_at_verdict import GroupsAtVerdict
from echo2.coordinator.verdicts.lease_entries import LeaseEntries
from echo2.coordinator.verdicts.recent_verdicts import RecentVerdicts
from echo2.coordinator.verdicts.replay_buffer import DrawnGroup, ReplayBuffer
from echo2.coordinator.verdicts.reviews import LOST_REVIEW, Review, Reviews
from echo2.coordinator.verdicts.scoring_order import PendingVersion
from echo2.coordinator.verdicts.shortage import Shortage
from echo2.coordinator.verdicts.stored_receipts import ACCEPTED_CODES, Receipts
from echo2.coordinator.verdicts.task_results import TaskResults
from echo2.coordinator.verdicts.token_storage import CHALLENGE_WINDOW_MS, TokenStorage
from echo2.coordinator.verdicts.verdicts import VerdictService
from echo2.coordinator.verdicts.waiting_groups import Undecided, Visit, WaitingGroups
from echo2.coordinator.verification.verification import Verdict
from echo2.coordinator.verification.version_pairs import ONE_IN, is_doubted
from echo2.engines.engine import Sample
from echo2.ledger.ledger_entries import Entry
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import LOCAL_ORIGIN, Origin
from echo2.protocol.broadcast_messages import Acknowledgement
from echo2.protocol.leases import Lease, LeaseReport, LeaseRequest
from echo2.protocol.refusals import sentence
from echo2.protocol.requests import Refusal
from echo2.protocol.task_kinds import ANSWERED_KINDS, SINGLE_KIND
from echo2.tasks.task import Score

log = structlog.get_logger("coordinator")


class GroupService:
    """Leases, submissions, verdicts and batches of one run.

    `progress`: progress of the learner; None until it has started, and while it is None no lease is given. `paused`:
    while true no lease is given. `asked`: number of answers to lease requests since the last draw, by refusal code; "":
    a lease was given. `episodes`: those of an environment."""

    def __init__(
        self,
        records: RunRecords,
        context: RolloutContext,
        sealing: Sealing,
        entropy: Entropy,
        environment: EnvironmentSection | None = None,
        *,
        paid_work: PaidWork | None = None,
        to_come: ToCome = none_to_come,
    ) -> None:
        """Make the service over the records of its run. `entropy`: random bytes for ids, seeds and draws of samples.
        `environment`: its settings; None: the defaults. `paid_work`: tells whom the run pays; None: everybody.
        `to_come`: see `DoubtedDays`."""
        database, terms, accounting = records.database, context.terms, records.accounting
        self.database, self.terms, self._entropy, self._reseal = database, terms, entropy, sealing.reseal
        self.registry, self._teams, self.broadcasts = records.registry, records.teams, records.broadcasts
        self.classes, self.costs = records.classes, accounting.costs
        self.ledger, self.accounts, self.strikes = accounting.ledger, accounting.accounts, accounting.strikes
        self.lease_ends, self._quarantine = accounting.lease_ends, accounting.quarantine
        self.progress: Progress | None = None
        self.paused = False
        self.asked: Counter[str] = Counter()
        self.arrived = asyncio.Event()
        """Set with each submission, and when a check of a verdict is asked for: work for the scorer."""
        self._context = context
        self.tasks = [task.name for task in context.spec.tasks]
        self.episodes = EpisodeRecords()
        self.reviews = Reviews(database, self.ledger)
        self.buffer = ReplayBuffer(database, terms.staleness, refill=terms.refill, by_signal=terms.draw == "signal")
        self.tokens, self.recent_verdicts = TokenStorage(database), RecentVerdicts()
        self._waiting = WaitingGroups(database)
        self._busy, self._reports, self._recalled = BusyNodes(database), WaitingReports(), RecalledLeases()

        self.leases = LeaseTable(
            database, terms, context.prompts, self.accounts, paid_work or AllWork(), reach=self.broadcasts.reach
        )
        writer = LeaseWriter(database, self.leases, sealing.seal, entropy, self.classes)
        served = [task.name for task in context.spec.tasks if task.kind in ANSWERED_KINDS]
        self._kinds = self._make_kinds(writer, served)
        self.issuer = LeaseIssuer(database, self.leases, self._kinds, self.classes)

        receipts = Receipts(database, sealing.seal, context.spec.run, self.leases.paid_work)
        entries = LeaseEntries(accounting, pay_rule(context.spec.price_mode), self._receivers(accounting))
        self.verdicts = VerdictService(
            database, accounting, context, self.classes, self.reviews, receipts, entries, self.leases,
            self.audits.confirms, check_wanted=self.arrived.set, to_come=to_come,
        )  # fmt: skip
        self.submissions = SubmissionService(
            database, self.leases, self.verdicts, self.strikes, self._waiting, context, sealing
        )
        section = environment or EnvironmentSection()
        self.steps = StepService(
            database, self.leases, self.accounts, context, seconds=section.seconds, workers=section.workers
        )

    def _make_kinds(self, writer: LeaseWriter, served: Sequence[str]) -> Sequence[LeaseKind]:
        """Make the kinds of lease, in the order in which they offer one. `served`: names of the tasks whose turns the
        coordinator answers."""
        database, terms, entropy = self.database, self.terms, self._entropy
        answers = CanaryAnswers(database, self.accounts, served, entropy)
        self.canaries = CanaryLeases(database, writer, self.leases.twins, answers, terms.canaries, entropy)
        pairs = AuditPairs(database, terms.audits, entropy)
        self.audits = AuditLeases(database, self.leases, writer, pairs, self._check_again)
        plain = PlainLeases(database, self.leases, writer, served, self.audits.on_plain_grant)
        return self.audits, self.canaries, plain

    def _receivers(self, accounting: Accounting) -> Sequence[OnDecided]:
        """Return what follows from the end of a lease, in order (coordinator/accounts/decided.py)."""
        return (
            accounting.vesting.on_decided,
            accounting.quarantine.on_decided,
            self.buffer.on_decided,
            self.leases.timely.on_decided,
            self.leases.twins.on_decided,
            self.leases.lengths.on_decided,
            TaskResults(self.database).on_decided,
            self.leases.on_decided,
            self.tokens.on_decided,
            self.recent_verdicts.on_decided,
            accounting.strikes.on_decided,
            *(kind.on_decided for kind in self._kinds),
        )

    def take(self, terms: LeaseTerms) -> None:
        """Take other terms: leases and draws from now on have them."""
        self.terms = terms
        self.buffer.refill, self.buffer.by_signal = terms.refill, terms.draw == "signal"
        self.leases.take(terms)
        for kind in self._kinds:
            kind.take(terms)

    def start(self, now: int) -> int:
        """Extend open leases by the daemon's absence, and end those that expired; return the absence, ms. Call once
        after each start."""
        away = self.leases.resume(now)
        self._waiting.restore()
        while self.verdicts.expiries.expire(now):
            pass
        return away

    def tick(self, now: int, busy: Collection[str] = ()) -> int:
        """Do the periodic work, and end expired leases; return how many ended. Call every second or so, and again at
        once while `EXPIRED_AT_ONCE` end. `busy`: connections that were answered BUSY since the last call."""
        self.leases.beat(now)
        self.registry.save(now)
        self.lease_ends.write_entry(now)
        self._teams.settle(now)
        self._quarantine.settle(self.verdicts.days, now)
        self.steps.tick(now)
        self._busy.stand(busy, now)
        self.lease_ends.forget(now)
        return self.verdicts.expiries.expire(now)

    def forget(self, covered: Collection[bytes], step: int, era: int, now: int) -> int:
        """Delete a slice of the leases' content, nodes, strikes and evidence that are no longer kept; return how many,
        0 if none is left. `covered`, `step`: see `TokenStorage.forget`."""
        leases = self.tokens.forget(covered, step, era, self.terms.staleness, now - CHALLENGE_WINDOW_MS)
        kept = self.verdicts.evidence, self.verdicts.near_ties, self.verdicts.version_pairs
        evidence = sum(table.forget(now) for table in kept)
        evidence += sum(kind.forget(era, oldest_fresh(step, self.terms.staleness)) for kind in self._kinds)
        for review in self.reviews.too_late():
            self.lose_review(review, "its group was deleted before its turn came", now)
        checks = self.reviews.forget(now) + self.tokens.forget_excerpts(now)
        return leases + self.registry.forget(now) + self.strikes.forget(now) + evidence + checks

    def rebuild(self, drawn: Iterable[bytes], progress: Progress) -> None:
        """Start anew from a learner's checkpoint: its draws, and its progress."""
        self.buffer.rebuild(drawn, progress.step, progress.era)
        self.progress = progress

    def lease(self, node: bytes, request: LeaseRequest, now: int, origin: Origin = LOCAL_ORIGIN) -> bytes | Refusal:
        """Give a node a sealed Lease, or refuse it."""
        self.registry.on_contact(node, now, request.version)
        at = self.progress
        if at is not None and self.paused:
            at = msgspec.structs.replace(at, paused=True)
        answer = self.issuer.issue(node, request, at, self.count_buffered(), now, origin)
        self.asked[answer.code if isinstance(answer, Refusal) else ""] += 1
        return answer if isinstance(answer, Refusal) else self._reseal("lease", answer)

    def take_report(self, node: bytes, report: LeaseReport, now: int) -> list[bytes]:
        """Take a node's report on its open leases: those that it gives back end, as declined ones unless they were
        recalled while the node worked on others. Return the leases that it must not begin (`Response.ended`)."""
        returned = self.leases.open_among(node, report.returned)
        recalled = [lease for lease in returned if lease in self._recalled]
        superseded = self.leases.waited_behind_work(node, [*report.waiting, *returned], recalled)
        self.verdicts.expiries.end_early(superseded, "superseded", now)
        self.verdicts.expiries.end_early([lease for lease in returned if lease not in superseded], "declined", now)
        may_begin = [lease for lease in self.leases.open_among(node, report.waiting) if lease not in self._recalled]
        self._reports.note(node, may_begin)
        return [lease for lease in report.waiting if lease not in may_begin]

    def recall(self, now: int) -> int:
        """Recall the leases that can no longer be drawn and are not begun (superseded_leases.py); return how many. Call
        after each publication."""
        at = self._standing()
        self._recalled.keep(self.leases.still_open)
        loads = self.leases.on_their_way(at.era, now) + Counter(self.buffer.by_version(at.step, at.era))
        loads -= self._recalled.by_version()
        by_version, terms = [VersionLoad(*load) for load in loads.items()], self.terms
        if not any_beyond(by_version, terms.staleness, at.step, terms.batch_groups):
            return 0
        reported = itertools.chain.from_iterable(self._reports.by_node().values())
        waiting = self.leases.waiting_among([lease for lease in reported if lease not in self._recalled])
        recalled = to_recall(by_version, waiting, terms.staleness, at.step, terms.batch_groups)
        self._recalled.add(recalled)
        return len(recalled)

    def acknowledge(self, node: bytes, message: Acknowledgement, now: int) -> None:
        """Note that a node has applied a version."""
        registry = self.registry
        registry.on_contact(node, now)
        self.broadcasts.on_acknowledgement(
            peer_id(node), message, now, here_since=registry.here_since(node), admitted=registry.is_admitted(node)
        )

    async def durable(self) -> None:
        """Wait until everything written so far is committed. Await it before any answer is sent."""
        await self.database.durable()

    def waiting(self) -> list[PendingVersion]:
        """Return the versions with groups that wait for the scorer, oldest first."""
        return self._waiting.versions()

    def oldest_to_draw(self) -> int:
        """Return the oldest version that the next draw may take; 0 until the learner has started."""
        at = self.progress
        return 0 if at is None else oldest_fresh(at.step, self.terms.staleness)

    def visit(self, under: PendingVersion) -> Visit:
        """Start to take the groups that wait under one version, one after the other."""
        return self._waiting.visit(under)

    def list_undecided(self, most: int = 64) -> list[Undecided]:
        """Return the groups that wait for the scorer, oldest version first, then in the order of receipt."""
        return self._waiting.all(most)

    def draw_first_sample(self, group: Undecided, now: int) -> int | None:
        """Draw the sample of a group that the scorer scores alone first; None: all at once."""
        samples = len(group.submission.rollouts)
        if samples == 1 or not self._is_doubted(group.lease.node, now):
            return None
        return int.from_bytes(self._entropy(8)) % samples

    def compare_known(self, group: Undecided) -> Verdict | None:
        """Return the verdict on a group that agrees with a known one: a canary with its answer (canaries.py, rule 6),
        an audited group with another node's (audits.py, rule 5). None: the group must be scored."""
        for kind in self._kinds:
            if (verdict := kind.compare(group.lease.id, group.submission.rollouts)) is not None:
                return verdict
        return None

    def wanted_answer(self) -> WantedAnswer | None:
        """Return the answer of a canary that the scorer should make in idle time; None: it is not needed."""
        at = self.progress
        if at is None or at.finished or self.paused or not self.terms.canaries:
            return None
        return self.canaries.answers.wanted_answer(at.era, at.version, self.terms.group_size)

    def answer_made(self, version: int, wanted: WantedAnswer, samples: list[Sample], now: int) -> None:
        """Store an answer that the scorer made under a version."""
        self.canaries.answers.put(self._standing().era, version, wanted, samples, now)

    def draw_pass_before(self, group: Undecided) -> bool:
        """Draw whether a good group is also passed under the version before its own (version_pairs.py, rule 1)."""
        if group.lease.calibration is None:
            return False
        doubted = is_doubted(self.verdicts.version_pairs.of(group.lease.node))
        return doubted or int.from_bytes(self._entropy(8)) % ONE_IN == 0

    def _is_doubted(self, node: bytes, now: int) -> bool:
        """Tell whether a key is new, has strikes, or is suspended (which deleted its strikes)."""
        standing = self.accounts.of(node, now)
        return standing.rank == "new" or standing.suspended_until is not None or self.strikes.of(node) > 0

    def oldest_needed(self) -> tuple[int, int]:
        """Return (era, version) of the oldest version that leases, undecided groups or joining nodes may still need."""
        at = self.progress
        recent = (at.era, max(0, at.version - self.terms.staleness - 1)) if at else (0, 0)
        in_use = (
            self.leases.oldest_in_use(),
            self.reviews.oldest_version(at.era, at.version) if at else None,
        )
        return min(recent, *(one or recent for one in in_use))

    def is_rewarded_later(self, group: Undecided) -> bool:
        """Tell whether the scores of a group come from an environment, after its verification. A canary is not learned
        from, so it needs none."""
        single = self.is_single(group.lease.task, group.lease.task_version)
        return single and not self.leases.twins.is_canary(group.lease.id)

    def is_single(self, task: str, version: int) -> bool:
        """Tell whether the episodes of a task have one turn, which an environment rewards."""
        return self._context.kind(task, version) == SINGLE_KIND

    def leave_for_reward(self, group: Undecided) -> None:
        """Take a verified group from those that wait for the scorer; it waits for its rewards."""
        self._waiting.leave(group)

    def begin_reward(self, group: Undecided) -> None:
        """Note that the environment scores a group now (lease_window.py, rule 5)."""
        self.leases.scored[group.lease.id] = group.lease.era, group.lease.version

    def reward(self, group: Undecided, scores: Sequence[Score | None]) -> None:
        """Store the scores that an environment gave a group. None: the episode failed."""
        self.verdicts.scores.put(group.lease.id, scores)

    def decide(self, group: Undecided, verdict: Verdict, now: int) -> bytes:
        """Decide a group by its verdict; return the sealed Receipt."""
        return self.decide_all([(group, verdict)], now)[0]

    def decide_all(self, judged: Sequence[tuple[Undecided, Verdict]], now: int) -> list[bytes]:
        """Decide groups in one transaction; return what `decide` does, for each. Where one fails, each of the others is
        decided in a transaction of its own, and then the error is raised."""
        self.leases.paid_work.before_verdict()
        try:
            with self.database.transaction():
                stored = GroupsAtVerdict(self.database, [group.lease for group, _ in judged])
                return [self._decide(group, verdict, stored, now) for group, verdict in judged]
        except Exception as failure:
            if len(judged) == 1:
                raise
            log.error("verdicts given together failed: each is given alone", groups=len(judged), reason=repr(failure))
        receipts, failures = list[bytes](), list[Exception]()
        for one in judged:
            try:
                receipts += self.decide_all([one], now)
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return receipts

    def _decide(self, group: Undecided, verdict: Verdict, stored: GroupsAtVerdict, now: int) -> bytes:
        lease, at = group.lease, self._standing()
        if verdict.accepted and self._context.kind(lease.task, lease.task_version) in ANSWERED_KINDS:
            self.episodes.of(lease.task).note_episodes(lease.id, len(lease.seeds))
        return self.verdicts.decide(stored.take(lease), group.submission.rollouts, verdict, at, now)

    def refuse_unscorable(self, group: Undecided, now: int, why: str | None = None) -> bytes:
        """Refuse a group that cannot be scored, by the operator's fault; return the sealed Receipt. `why`: the reason;
        None: its version is gone."""
        detail = f"version {group.lease.version} can no longer be loaded" if why is None else why
        return self.decide(group, Verdict("not-scorable", sentence("not-scorable", detail=detail), None), now)

    def answer_review(self, review: Review, verdict: Verdict, lease: Lease, now: int) -> str:
        """Store the answer of a further check, and reverse a refusal that it does not confirm; return its code. A check
        whose group was deleted meanwhile is lost: nothing could be paid for it."""
        if not self.reviews.is_stored(review.lease):
            self.lose_review(review, "its group was deleted while it was checked", now)
            return LOST_REVIEW
        first, said = self.database.all("SELECT code, verdict FROM verdicts WHERE lease = ?", (review.lease,))[0]
        again, reason = self.verdicts.second.judge_again(lease, verdict)
        with self.database.transaction():
            self.reviews.answer(review, first, again, reason, now)
            if said == "refused" and again == "ok" and reversals.find(self.ledger, review.lease) is None:
                self.reverse(review.lease, review.by, "a further check does not confirm it", now)
        return again

    def _check_again(self, refused: Sequence[bytes], now: int) -> bool:
        """Have refusals checked by another process of the scorer, and wake it; tell whether any can be."""
        asked = [self.reviews.ask(lease, "audit", now) for lease in refused]
        if any(asked):
            self.arrived.set()
        return any(asked)

    def lose_review(self, review: Review, why: str, now: int) -> None:
        """Note that a check cannot be made."""
        first: str = self.database.value("SELECT code FROM verdicts WHERE lease = ?", (review.lease,)) or ""
        with self.database.transaction():
            self.reviews.answer(review, first, LOST_REVIEW, why, now)

    def reverse(self, lease: bytes, by: str, why: str, now: int) -> Entry:
        """Reverse a verdict; a group that is taken back is not learned from, unless it was drawn. Raises
        `LookupError`."""
        entry = self.verdicts.second.reverse(lease, by, why, now)
        if self.database.one("SELECT 1 FROM buffer WHERE lease = ?", (lease,)) is not None:
            self.buffer.set_aside([lease], "its verdict was reversed", now)
        return entry

    def draw(self, now: int, again: Sequence[bytes] = ()) -> list[DrawnGroup] | None:
        """Draw the learner's next batch, that of step `progress.step + 1`, which it begins at once. `again`: see
        `ReplayBuffer.draw`."""
        at = self._standing()
        completed = None if again else self.buffer.next_completion(at.step, at.era, self.terms.batch_groups)
        batch = self.buffer.draw(at.step, at.era, self.terms.batch_groups, again)
        if batch is not None:
            self.leases.window.draw(completed, now)
            record_draw(self.database, batch, at.era, at.step + 1, now, self.broadcasts.loaded_at)
        elif not again:
            self.leases.window.wait(now)
        return batch

    def shortage(self, now: int) -> Shortage:
        """Return the shortage of groups for the learner's next batch."""
        at = self._standing()
        load = self.leases.load(at, now)
        return Shortage(
            batch=self.terms.batch_groups,
            ready=self.count_buffered(),
            undecided=load.undecided,
            running=load.running,
            flat=self.buffer.flat(at.step, at.era),
            asked=self.asked,
            decided=len(self.recent_verdicts.codes),
            refused=Counter(code for code in self.recent_verdicts.codes if code not in ACCEPTED_CODES),
        )

    def count_buffered(self) -> int:
        """Count the groups that may be drawn now; 0 until the learner has started."""
        at = self.progress
        return 0 if at is None else self.buffer.count_buffered(at.step, at.era)

    def _standing(self) -> Progress:
        if self.progress is None:
            raise RuntimeError("the learner has not started: its progress is not known")
        return self.progress
