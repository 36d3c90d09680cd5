"""The table of leases: a lease lets one node generate one group, under one version, until it expires.

Rules
1. A lease is durable before it is sent. The same request (node and nonce) gets the same lease again: the stored lease
   is looked up first, by one search in an index, and counts against no limit.
2. A lease names exactly the version that the node has loaded, if that is fresh enough and there is room for it. The
   room of version p is (S + p + 1 - step) * batch - buffered - undecided - running, in groups, all read at the request.
   The table `on_their_way` counts open and received leases per version, in the transaction that moves them, and only
   versions that are fresh now are added up. A single running total would also count groups that are shed later, and
   would one day give no lease any more.
3. States: open -> received -> decided, or open -> expired. The last two are final.
4. The coordinator's absence costs no node: `resume` extends every open lease by the time since the last `beat`.
5. Other modules of coordinator/rollouts bound the open leases per node (open_lease_limit.py), divide the room
   (room_shares.py), set lifetimes (lease_lifetime.py), limit expiries (expiry_budgets.py) and choose the prompt
   (prompt_positions.py).
6. Every refusal states its reason and when to retry, except for a finished run and an engine of another class.
7. Of the leases that have room, those that the next version can bring in time are left to it (`later`;
   lease_pacing.py).
8. A known node that takes held-out groups gets one first in its turn, and whenever there is no room for training
   (heldout_plans.py).
9. A proven node that gets none of these may cover a lease that is overdue (hedging.py, twin_sets.py).
10. A lease of a training prompt may be replaced by one whose answer is known (canaries.py).
11. A group that a lost node has begun goes before a new prompt, under its version (moving.py).
12. A proven node may get the twin of a lease that was drawn to be audited (audits.py).
13. Where too much work came too late, leases that would hardly come back in time are left out (timely_grants.py).
14. A run with a market gives leases of any kind to the nodes alone that it pays now (paid_work.py).
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal

import msgspec

from coordinator.accounts.standing import Accounts, Rank
from coordinator.accounts.strikes import AT_ONCE, STRIKES
from coordinator.database import Database
from coordinator.learner.age import fresh, oldest_fresh
from coordinator.rollouts.audit_pairs import GIVEN, AuditPairs
from coordinator.rollouts.begun_table import BegunTable, MovedGroup
from coordinator.rollouts.canaries import CanaryShare
from coordinator.rollouts.canary_answers import CanaryAnswers
from coordinator.rollouts.hedging import LEAST_SPARE, SPARE, overdue_after
from coordinator.rollouts.heldout_plans import HeldoutGroup, HeldoutPlans
from coordinator.rollouts.lease_admission import LeaseAdmission, LeaseDemand
from coordinator.rollouts.lease_lifetime import LifetimeBounds
from coordinator.rollouts.lease_pacing import LearnerState, LeasePacing
from coordinator.rollouts.lease_rows import LeaseRows, State
from coordinator.rollouts.lease_terms import InFlight, LeaseTerms, Progress, free_slots
from coordinator.rollouts.moving import is_in_time, is_worth_moving
from coordinator.rollouts.overdue_leases import OverdueLeases
from coordinator.rollouts.paid_work import AllWork, PaidWork
from coordinator.rollouts.prompt_positions import NO_PROMPT, PromptPosition, PromptPositions
from coordinator.rollouts.prompts import Prompt, PromptPending, PromptSource
from coordinator.rollouts.quick_nodes import QuickNodes, read_speed
from coordinator.rollouts.retry_times import RetryTimes, back_by
from coordinator.rollouts.timely_grants import TimelyGrants
from coordinator.rollouts.twin_sets import Kind, TwinSets
from coordinator.verification.open_classes import OpenClasses
from engines.registry import is_exact
from p2p.limits.origin import LOCAL, Origin
from p2p.wire_types import encode
from protocol.engine_classes import admits
from protocol.leases import Lease, LeaseRequest
from protocol.refusals import refusal
from protocol.requests import Refusal
from tasks.task import TaskFault

Seal = Callable[[str, bytes], bytes]
"""(kind, payload) -> sealed document, by the key of the role that signs this kind."""
Reseal = Callable[[str, bytes], bytes]
"""(kind, a stored sealed document) -> the same document, sealed by a current key (coordinator/run/sealing.py)."""
Entropy = Callable[[int], bytes]
"""n -> n random bytes."""
Early = Literal["superseded", "declined"]
"""Codes of a lease that ended before its time: its group cannot be drawn any more, or its node gave it back."""

PAUSED: Final = ("expiries", "too-slow")
"""Codes of the refusals of nodes that get no lease for a while, whatever room there is."""

NOT_CALIBRATED: Final = 60_000
"""Milliseconds after which a node of a class without a Calibration asks again."""


class LeaseTable(LeaseRows):
    """The table of leases, which issues leases, moves them from state to state, and counts them."""

    def __init__(
        self,
        database: Database,
        terms: LeaseTerms,
        prompts: PromptSource,
        seal: Seal,
        entropy: Entropy,
        accounts: Accounts,
        classes: OpenClasses,
        served: Collection[str] = (),
    ) -> None:
        """`served`: names of tasks whose leases have no twins and no canaries."""
        super().__init__(database)
        self.terms = terms
        self._served = served
        self._seal = seal
        self._entropy = entropy
        self._classes = classes
        self.positions = PromptPositions(
            database, prompts, by_variance=terms.prompts == "variance", by_length=terms.by_length
        )
        self._quick = QuickNodes()
        self.heldout = HeldoutPlans(database)
        self.twins = TwinSets(database)
        self.begun = BegunTable(database)
        self.progress: Callable[[], Progress | None] = lambda: None
        """Returns the progress of the run."""
        self.paid_work: PaidWork = AllWork()
        """Tells whom the run pays."""
        self.timely = TimelyGrants()
        self._overdue_leases = OverdueLeases(database, terms.hedge_share, entropy)
        self.canaries = CanaryAnswers(database, accounts, served, entropy)
        self._canary_share = CanaryShare(terms.canaries)
        self.audits = AuditPairs(database, terms.audits, entropy)
        bounds = LifetimeBounds(terms.first_ms, terms.least_ms, terms.most_ms)
        sequential = terms.staleness == 0
        self._admission = LeaseAdmission(database, bounds, sequential, accounts, terms.per_node, terms.newcomers)
        self.pacing = LeasePacing(
            database,
            applied=terms.pacing == "fresh",
            staleness=terms.staleness,
            batch=terms.batch_groups,
            newcomers=terms.newcomers,
        )
        self._retries = {"new": RetryTimes(), "known": RetryTimes()}
        """Separate, so that many new keys do not lengthen the waits of known nodes."""

    def publish(self, era: int, version: int, root: bytes, now: int) -> None:
        """Let nodes request leases for a version from now on. Publishing it twice has no effect. Raises `ValueError`
        for another root under the same number."""
        known = self.root_of(era, version)
        if known is not None and known != root:
            raise ValueError(f"version {version} of era {era} was published with another root")
        self._database.do("INSERT OR IGNORE INTO versions VALUES (?, ?, ?, ?)", (era, version, root, now))

    def issue(
        self,
        node: bytes,
        request: LeaseRequest,
        progress: Progress | None,
        buffered: int,
        now: int,
        origin: Origin = LOCAL,
    ) -> bytes | Refusal:
        """Return a sealed Lease that is written to the table, or the refusal. `buffered`: groups that may be drawn now.
        `origin`: where the request came from."""
        if (given := self._given(node, request.nonce)) is not None:
            return given
        rank = self._admission.rank(node, now)
        demand: LeaseDemand | None = None
        refused = self._unfit(request, progress, now) or self.paid_work.refused(node, origin, now)
        if refused is None and progress is not None:
            demand = self._admission.demand(node, rank, origin, request.at_once, now)
            refused = self._denied(demand, now)
            if refused is None:
                answer = self._given_by_room(demand, request, progress, buffered, now)
                if not isinstance(answer, Refusal):
                    self.pacing.served(demand.requester, now)
                    return answer
                refused = answer
        assert refused is not None
        if refused.retry_after is not None:
            wait = self._retries_of(rank).after(node, now, refused.retry_after, origin.party)
            refused = msgspec.structs.replace(refused, retry_after=wait)
            if demand is not None:
                until = back_by(now, wait)
                self._admission.waits(demand, refused.code, until, now)
                self.pacing.comes_back(demand.requester, until, now, later=refused.code == "later")
                if refused.code not in PAUSED:
                    self.pacing.waits(node, demand.record, until, new=rank == "new")
        return refused

    def _retries_of(self, rank: Rank) -> RetryTimes:
        return self._retries["new" if rank == "new" else "known"]

    def _given_by_room(
        self, demand: LeaseDemand, request: LeaseRequest, progress: Progress, buffered: int, now: int
    ) -> bytes | Refusal:
        """Return a sealed Lease, of the training prompts or a held-out one (rule 8), or why there is no room."""
        group = self._heldout_group(demand, request)
        if group is None and progress.paused:
            return refusal("paused", retry_after=10 * self.terms.retry_ms)
        if group is not None and (progress.paused or self.heldout.share.may()):
            return self._issued_heldout(group, demand, request, now)
        refused = self._lacks_room(demand, request.version, progress, buffered, now)
        begun = self._begun_for(demand, request) if refused is None or refused.code == "later" else None
        if begun is not None:
            return self._issued_begun(begun, demand, request, now)
        if (refused is None or refused.code in SPARE) and (
            audit := self._issued_audit(demand, request, progress, now)
        ) is not None:
            return audit
        if refused is None:
            if (canary := self._issued_canary(demand, request, now)) is not None:
                return canary
            try:
                return self._issued(demand, request, now)
            except PromptPending:
                refused = refusal("no-prompt", retry_after=self.terms.retry_ms)
            except TaskFault:
                refused = refusal("no-prompt", retry_after=NO_PROMPT)
        if group is not None and refused.code != "undecided":
            return self._issued_heldout(group, demand, request, now)
        return (self._issued_hedge(demand, request, now) if refused.code in SPARE else None) or refused

    def _heldout_group(self, demand: LeaseDemand, request: LeaseRequest) -> HeldoutGroup | None:
        if not request.heldout or demand.requester.share != "known":
            return None
        return self.heldout.next_group(request.era, request.version, demand.requester.node)

    def _issued_heldout(self, group: HeldoutGroup, demand: LeaseDemand, request: LeaseRequest, now: int) -> bytes:
        prompt, seeds = self.heldout.prompts[group.key]
        chosen = PromptPosition(-group.id, group.leases, "", prompt)
        with self._database.transaction():
            self.heldout.leased(group.id, demand.requester.node)
            _, sealed = self._write(chosen, demand, request, now, seeds)
        self.heldout.note_lease(heldout=True)
        self._overdue_leases.share.note(hedge=False)
        return sealed

    def _issued_hedge(self, demand: LeaseDemand, request: LeaseRequest, now: int) -> bytes | None:
        """Return a sealed Lease that covers an overdue one (rule 9); None: there is none for this node."""
        node, origin = demand.requester.node, demand.requester.origin
        if demand.rank != "proven" or demand.requester.share != "known" or not is_exact(request.engine):
            return None
        one = self._overdue_leases.to_cover(node, origin, request.era, request.version, now)
        record, lent = (None, None) if one is None else (self.find(one.id), self._admission.lent(one.id))
        if one is None or record is None or lent is None or not self.pacing.has_spare(LEAST_SPARE):
            return None
        lease = record.lease
        prompt = Prompt(lease.task, lease.task_version, lease.index, lease.prompt)
        with self._database.transaction():
            chosen = PromptPosition(one.position, one.attempt, lent.reasons, prompt)
            _, sealed = self._write(chosen, demand, request, now, lease.seeds, "hedge")
            self._overdue_leases.covered(lease.id)
            self._admission.covered(lent, now)
            self._recount(lease.id)
        self._overdue_leases.share.note(hedge=True)
        self._note_given(demand, now)
        return sealed

    def _issued_canary(self, demand: LeaseDemand, request: LeaseRequest, now: int) -> bytes | None:
        """Return a sealed Lease whose answer is known (rule 10); None: the node gets a normal one."""
        node, first = demand.requester.node, demand.first
        if not self._canary_share.share or not is_exact(request.engine):
            return None
        if not first and not self._canary_share.draw(self._entropy(4)):
            return None
        answer = self.canaries.choose(node, demand.requester.origin, request.era, request.version, now)
        if answer is None:
            return None
        with self._database.transaction():
            chosen = PromptPosition(answer.position, answer.attempt, "", answer.prompt)
            lease, sealed = self._write(chosen, demand, request, now, answer.seeds, "canary")
            self.canaries.given(answer, lease)
        if not first:
            self._canary_share.given()
        return sealed

    def _issued_audit(self, demand: LeaseDemand, request: LeaseRequest, progress: Progress, now: int) -> bytes | None:
        """Return a sealed Lease that another node has too, or had (rule 12); None: there is none for this node."""
        node, origin = demand.requester.node, demand.requester.origin
        if demand.rank != "proven" or demand.requester.share != "known" or not is_exact(request.engine):
            return None
        self.audits.draws.keep(*self._oldest(progress))
        drawn = self.audits.to_audit(node, origin, request.era, request.version)
        record = None if drawn is None else self.find(drawn.lease)
        if drawn is None or record is None:
            return None
        lease, lent = record.lease, self._admission.lent(drawn.lease)
        prompt = Prompt(lease.task, lease.task_version, lease.index, lease.prompt)
        chosen = PromptPosition(drawn.position, drawn.attempt, "" if lent is None else lent.reasons, prompt)
        with self._database.transaction():
            _, sealed = self._write(chosen, demand, request, now, lease.seeds, "audit")
            self.audits.count(GIVEN)
            self._recount(lease.id)
        self.audits.draws.end(drawn)
        self._note_given(demand, now)
        return sealed

    def _begun_for(self, demand: LeaseDemand, request: LeaseRequest) -> MovedGroup | None:
        """Return the group that a lost node has begun and this one may finish (moving.py, rules 4 and 5)."""
        fit = self.terms.move and request.begun and demand.rank != "new" and is_exact(request.engine)
        return self.begun.waiting_under(request.era, request.version) if fit else None

    def _issued_begun(self, group: MovedGroup, demand: LeaseDemand, request: LeaseRequest, now: int) -> bytes:
        """Return a sealed Lease that goes on behind the tokens of a lost one (rule 11)."""
        record = self.find(group.lease)
        assert record is not None
        lost = record.lease
        prompt = Prompt(lost.task, lost.task_version, lost.index, lost.prompt)
        chosen = PromptPosition(group.position, group.attempt, group.reasons, prompt)
        begun = [one.tokens for one in self.begun.tokens(lost.id, len(lost.seeds))]
        with self._database.transaction():
            _, sealed = self._write(chosen, demand, request, now, lost.seeds, "finish", begun)
            self.begun.end(lost.id)
            self._recount(lost.id)
        self._overdue_leases.share.note(hedge=False)
        self._note_given(demand, now)
        return sealed

    def _issued(self, demand: LeaseDemand, request: LeaseRequest, now: int) -> bytes:
        node, origin = demand.requester.node, demand.requester.origin
        self.positions.prepare()
        with self._database.transaction():
            relied_on = self._admission.relied_on(demand, now)
            chosen = self.positions.take(node, origin, now, relied_on=relied_on, longest=self._longest(demand))
            lease, sealed = self._write(chosen, demand, request, now)
        if is_exact(request.engine) and chosen.prompt.task not in self._served:
            self.audits.given(lease, chosen.position, chosen.attempt, (request.era, request.version), origin)
        self._overdue_leases.share.note(hedge=False)
        self._note_given(demand, now)
        return sealed

    def _note_given(self, demand: LeaseDemand, now: int) -> None:
        """Note a lease of a training prompt, after its transaction."""
        self.heldout.note_lease(heldout=False)
        self._admission.given(demand, now)
        self._retries_of(demand.rank).given(demand.requester.node, now)

    def _longest(self, demand: LeaseDemand) -> bool | None:
        """Tell whether a node gets a prompt with long answers (quick_nodes.py)."""
        if not self.terms.by_length:
            return None
        node = demand.requester.node
        reliable = demand.rank != "new" and self.positions.brings(node)
        return self._quick.gets_long(read_speed(self._database, node), reliable=reliable)

    def _given(self, node: bytes, nonce: bytes) -> bytes | None:
        """Return the sealed Lease that answered this request before."""
        given: bytes | None = self._database.value(
            "SELECT sealed FROM leases WHERE node = ? AND nonce = ?", (node, nonce)
        )
        return given

    def _unfit(self, request: LeaseRequest, at: Progress | None, now: int) -> Refusal | None:
        """Return why this request would get no lease even in an empty room."""
        terms, again = self.terms, self.terms.retry_ms
        if at is None:
            return refusal("not-ready", retry_after=again)
        if at.finished:
            return refusal("finished")
        if at.paused and not at.heldout_goes_on:
            return refusal("paused", retry_after=10 * again)
        if not admits(request.engine, terms.engines):
            return refusal("engine", engine=request.engine, admitted=", ".join(terms.engines))
        if not is_exact(request.engine) and self._classes.of(request.engine) is None:
            return refusal("not-calibrated", retry_after=NOT_CALIBRATED, engine=request.engine)
        known = self.root_of(request.era, request.version)
        if request.era != at.era or known != request.root:
            facts = {"era": request.era, "version": request.version, "wanted": at.version, "wanted_era": at.era}
            return refusal("wrong-version", retry_after=again, **facts)
        if not fresh(at.step, request.version, terms.staleness):
            facts = {"version": request.version, "step": at.step, "limit": terms.staleness, "wanted": at.version}
            return refusal("stale-version", retry_after=again, **facts)
        if wait := self.positions.wait(now):
            return refusal("no-prompt", retry_after=wait)
        return None

    def _denied(self, demand: LeaseDemand, now: int) -> Refusal | None:
        if (denied := self._admission.denied(demand, now)) is None:
            return None
        denial, wait = denied
        return refusal(denial.code, retry_after=wait or self.terms.retry_ms, **denial.facts)

    def _lacks_room(self, demand: LeaseDemand, version: int, at: Progress, buffered: int, now: int) -> Refusal | None:
        terms, load = self.terms, self.load(at, now)
        left = free_slots(at, terms, version, buffered, load)
        if left <= 0 < free_slots(at, terms, at.version, buffered, load):
            return refusal("newer-version", retry_after=terms.retry_ms, version=version, wanted=at.version)
        whole = (terms.staleness + 1) * terms.batch_groups
        chance = self.pacing.new_chance(now)
        oldest = self._oldest(at)
        no_room = self._admission.lacks_room(demand, whole, left, oldest, chance, now)
        facts = {"version": version, "step": at.step}
        if no_room is not None:
            return refusal(no_room.code, retry_after=terms.retry_ms, **facts, **no_room.facts)
        state = LearnerState(
            at.era, at.step, at.version, at.publish_every, buffered, load.undecided, self._admission.verdict_time(now)
        )
        wait = self.pacing.refused(
            demand.requester, demand.record, version, state, now, lambda: self._admission.has_new_share(whole, oldest)
        )
        if wait is None and self._comes_too_late(demand, version, at, now):
            wait = terms.retry_ms
        if wait is not None:
            return refusal("later", retry_after=max(wait, terms.retry_ms), **facts)
        wait = self._admission.gives_up(demand)
        return None if wait is None else refusal("expiries", retry_after=wait, expired=1, wait=wait / 1000)

    def _comes_too_late(self, demand: LeaseDemand, version: int, at: Progress, now: int) -> bool:
        """Tell whether a lease would hardly come back trainable, where that is bounded (timely_grants.py)."""
        if not self.timely.bounded:
            return False
        steps = version + self.terms.staleness + 1 - at.step
        verdict, spread = self._admission.verdict_time(now), self.pacing.spread
        times = demand.record.turnarounds
        turnaround = sum(times) / len(times) if times else None
        return self.timely.refuses(steps, self.pacing.step, turnaround, verdict, spread)

    def _write(
        self,
        chosen: PromptPosition,
        demand: LeaseDemand,
        request: LeaseRequest,
        now: int,
        seeds: list[bytes] | None = None,
        twin: Kind = "",
        begun: Sequence[list[int]] = (),
    ) -> tuple[bytes, bytes]:
        """Write a lease, in the caller's transaction; return its id, and it sealed. `seeds`: of a held-out group or a
        twin; None: they are drawn. `begun`: see `Lease`."""
        node, origin = demand.requester.node, demand.requester.origin
        lease = self._lease(chosen, demand, request, now, seeds)
        every = None if twin == "finish" else self._report_every(lease, demand, request)
        lease = msgspec.structs.replace(lease, report_every=every, begun=list(begun))
        overdue = None if twin else self._overdue_at(lease, demand)
        document = encode(lease)
        sealed = self._seal("lease", document)
        row = (
            lease.id,
            node,
            request.nonce,
            chosen.position,
            request.era,
            request.version,
            now,
            lease.expires,
            document,
            sealed,
        )
        self._database.do(
            "INSERT INTO leases (id, node, nonce, position, era, version, sent, expires, document, sealed, attempt,"
            " connection, party, twin, counts, overdue, state)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'open')",
            (*row, chosen.attempt, *origin, twin, twin != "canary", overdue),
        )
        self._admission.lend(demand, lease.id, request.era, request.version, chosen.reasons, now)
        if chosen.position >= 0 and twin != "canary":
            new = demand.requester.share == "new"
            self.pacing.given(lease.id, node, demand.record, request.era, request.version, now, new=new)
        return lease.id, sealed

    def _overdue_at(self, lease: Lease, demand: LeaseDemand) -> int | None:
        """Return from when on a lease is overdue; None: it is never covered (overdue_leases.py)."""
        if not self.terms.hedge_share or lease.split == "heldout" or lease.task in self._served:
            return None
        after = None if lease.calibration is not None else overdue_after(demand.record.turnarounds)
        return None if after is None else lease.sent + after

    def _report_every(self, lease: Lease, demand: LeaseDemand, request: LeaseRequest) -> int | None:
        """Return how often a node is asked to report its tokens so far; None: never (moving.py, rule 1)."""
        plain = lease.split == "train" and lease.calibration is None and lease.task not in self._served
        wanted = self.terms.move and self.terms.staleness > 0 and request.begun and demand.rank != "new"
        return self.terms.report_ms if plain and wanted else None

    def _lease(
        self,
        chosen: PromptPosition,
        demand: LeaseDemand,
        request: LeaseRequest,
        now: int,
        seeds: list[bytes] | None,
    ) -> Lease:
        return Lease(
            id=self._entropy(16),
            node=demand.requester.node,
            nonce=request.nonce,
            task=chosen.prompt.task,
            task_version=chosen.prompt.task_version,
            index=chosen.prompt.index,
            prompt=chosen.prompt.tokens,
            seeds=seeds or [self._entropy(16) for _ in range(self.terms.group_size)],
            limit=self.terms.limit,
            era=request.era,
            version=request.version,
            root=request.root,
            sent=now,
            expires=now + demand.lifetime.lasts,
            calibration=None if is_exact(request.engine) else self._classes.of(request.engine),
            ranges_asked=not is_exact(request.engine),
            at_once=demand.requester.most_open,
            split="train" if chosen.position >= 0 else "heldout",
        )

    def move(self, lease: bytes, state: State, *, twins: bool = True) -> None:
        """Change the state of a lease, in the caller's transaction. A trigger keeps final states. `twins`: whether its
        set may have another lease."""
        self._database.later("UPDATE leases SET state = ? WHERE id = ?", (state, lease))
        self.pacing.ended(lease)
        if twins:
            self._recount(lease)

    def _recount(self, lease: bytes) -> None:
        """Let the set of a lease count once (twin_sets.py, rule 3)."""
        if (change := self.twins.recount(lease)) is None:
            return
        for one in change.ended:
            self.pacing.ended(one)
        if change.open is not None:
            self.pacing.counts(change.open)

    def accept(self, lease: bytes, *, learned: bool, share: str | None, twins: bool) -> None:
        """End a lease whose group is accepted. `learned`: whether it may be learned from. `share`: of the room that the
        lease took; None: it did not count. `twins`: see `move`."""
        self._note_outcome(share, learned=learned)
        self.move(lease, "decided", twins=twins)

    def _note_outcome(self, share: str | None, *, learned: bool) -> None:
        """Tell the law of leases how a lease of a training prompt ends. `share`: see `accept`."""
        if share is not None:
            self.pacing.outcome(learned=learned, new=share == "new")

    def fail(self, lease: bytes, state: State, code: str, now: int) -> bool:
        """End a lease that earned nothing: its position may be leased again, and an expiry or a strike is counted
        (expiry_budgets.py, rule 3). `code`: of the refusal, "expired", or an `Early` one. Return whether it is moved
        (moving.py)."""
        lent, moved = self._admission.lent(lease), False
        query = (
            "SELECT o.share FROM lent o JOIN leases l ON l.id = o.lease WHERE l.id = ? AND l.position >= 0 AND l.counts"
        )
        self._note_outcome(self._database.value(query, (lease,)), learned=False)
        self.move(lease, state)
        if lent is None:
            return False
        position, attempt = self._database.all("SELECT position, attempt FROM leases WHERE id = ?", (lease,))[0]
        if position < 0:
            self.heldout.returned(-position)
        elif not self.twins.is_canary(lease) and not self.twins.is_pending(lease):
            begun = self._moved(lease) if code in ("expired", "declined") else None
            if begun is not None:
                moved = True
                self.begun.move(MovedGroup(lease, position, attempt, lent.reasons, begun.era, begun.version, now))
            else:
                self.positions.ended(position, attempt, lent.reasons, code, now)
        if not moved:
            self.begun.drop(lease)
        if code in ("expired", "declined"):
            if not self.twins.is_hedged(lease):
                self._admission.expired(lent, now)
        elif code in STRIKES | AT_ONCE:
            self._admission.struck(lent, now)
        elif code == "superseded":
            self._note_superseded(lease)
        return moved

    def _moved(self, lease: bytes) -> Lease | None:
        """Return a lease that ends without a group, if it is moved (moving.py, rule 3)."""
        reported, at = self.begun.reported(lease), self.progress()
        record = None if reported is None or not self.terms.move else self.find(lease)
        if reported is None or record is None or at is None or at.era != record.lease.era:
            return None
        prompt, samples = len(record.lease.prompt), len(record.lease.seeds)
        in_time = is_in_time(record.lease.version, at.step, self.terms.staleness)
        return record.lease if in_time and is_worth_moving(reported.tokens, prompt, samples) else None

    def _note_superseded(self, lease: bytes) -> None:
        """Note that a lease was superseded while its node worked on earlier ones (superseded_leases.py, rule 6)."""
        self._database.do(
            "INSERT INTO superseded SELECT o.id FROM leases o WHERE o.id = ? AND NOT EXISTS (SELECT 1 FROM leases l"
            " JOIN submissions s ON s.lease = l.id WHERE l.node = o.node AND l.sent > o.sent)",
            (lease,),
        )

    def end_now(self, lease: bytes, now: int) -> None:
        """Let an open lease's time end now, in the caller's transaction: any group for it is late."""
        self._database.do("UPDATE leases SET expires = min(expires, ?) WHERE id = ? AND state = 'open'", (now, lease))

    def extend(self, lease: bytes, ms: int) -> None:
        """Let an open lease end later, as if it had been sent later: the time is no part of a turnaround."""
        query = (
            "UPDATE leases SET sent = sent + ?, expires = expires + ?, overdue = overdue + ?"
            " WHERE id = ? AND state = 'open'"
        )
        self._database.do(query, (ms, ms, ms, lease))
        self.pacing.extended(lease, ms)

    def load(self, progress: Progress, now: int) -> InFlight:
        """Count the groups on their way in the learner's era that are not too old already."""
        oldest = self._oldest(progress)
        running, undecided = self._database.all(
            "SELECT coalesce(sum(open - heldout_open - twin_open), 0),"
            " coalesce(sum(received - heldout_received - twin_received), 0)"
            " FROM on_their_way WHERE era = ? AND version >= ?",
            oldest,
        )[0]
        return InFlight(undecided, running - self._overdue(now, oldest))

    def _oldest(self, at: Progress) -> tuple[int, int]:
        return at.era, oldest_fresh(at.step, self.terms.staleness)

    def _overdue(self, now: int, oldest: tuple[int, int]) -> int:
        """Count the open leases whose time has passed: those that expired since the last tick."""
        where = "state = 'open' AND expires < ? AND era = ? AND version >= ? AND position >= 0 AND counts"
        return self._count(where, (now, *oldest))

    def beat(self, now: int) -> None:
        """Record that the coordinator is running. Call every second or so."""
        self._database.set_fact("alive_at", now)

    def resume(self, now: int) -> int:
        """Extend open leases by the time that the coordinator was absent; return that time in ms. Call after each start
        and absence.

        An absence is no part of a turnaround. After the clock was set back, leases that were sent in the future start
        anew: otherwise they would stay open, and block their nodes, until the clock has caught up."""
        with self._database.transaction():
            seen = self._database.fact("alive_at") or now
            away = max(0, now - seen)
            query = (
                "UPDATE leases SET sent = sent + ?, expires = expires + ?, overdue = overdue + ?"
                " WHERE state = 'open' AND expires >= ?"
            )
            self._database.do(query, (away, away, away, seen))
            query = (
                "UPDATE leases SET sent = ?, expires = expires - sent + ?, overdue = overdue - sent + ?"
                " WHERE state = 'open' AND sent > ?"
            )
            self._database.do(query, (now, now, now, now))
            self.beat(now)
            self._admission.start(now)
        self.pacing.anew()
        self.pacing.stopped()
        return away

    def _count(self, where: str, parameters: tuple[Any, ...]) -> int:
        return int(self._database.value(f"SELECT count(*) FROM leases WHERE {where}", parameters))
