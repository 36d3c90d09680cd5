"""Answer a request for a lease: with a sealed lease, or with the reason why there is none now.

Rules
1. A lease is durable before it is sent. The same request (node and nonce) gets the same lease again: the stored lease
   is looked up first, by one search in an index, and counts against no limit.
2. A lease names exactly the version that the node has loaded, if that is fresh enough and there is room for it
   (lease_table.py, rule 2).
3. Other modules of this folder bound the open leases per node (open_lease_limit.py), divide the room
   (room_shares.py), set lifetimes (lease_lifetime.py), limit expiries (expiry_budgets.py) and choose the prompt
   (prompt_positions.py).
4. Every refusal states its reason and when to retry, except for a finished run and an engine of another class.
5. No more groups are on their way than the learner needs to be kept busy (lease_window.py).
6. Each kind of lease offers one, in order, and the first offer is the answer (coordinator/leases/kinds/__init__.py).
   So a lease of a training prompt may be replaced by one whose answer is known (canaries.py), and a proven node may get
   the twin of a lease that was drawn to be audited (audits.py).
7. Where too much work came too late, leases that would hardly come back in time are left out, and the others end once
   their version is too old (timely_grants.py).
8. A run with a market gives leases of any kind to the nodes alone that it pays now (paid_work.py).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.age import fresh
from echo2.coordinator.leases.lease_admission import LeaseDemand
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.lease_terms import InFlight, Progress, free_slots
from echo2.coordinator.leases.lease_writer import AskedLease, LeaseKind
from echo2.coordinator.leases.retry_times import LEAST_RETRY_MS, RetryTimes, back_by
from echo2.coordinator.leases.timely_grants import comes_too_late, lasts_until
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.engines.registry import is_exact
from echo2.ledger.standing import Rank
from echo2.p2p.limits.origin import LOCAL_ORIGIN, Origin
from echo2.protocol.engine_classes import admits
from echo2.protocol.leases import LeaseRequest
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal

PAUSED_RETRY_MS: Final = 10_000
"""Milliseconds after which a node asks again while the operator pauses the run."""
NOT_CALIBRATED: Final = 60_000
"""Milliseconds after which a node of a class without a Calibration asks again."""


class LeaseIssuer:
    """The answers to requests for leases of one table."""

    def __init__(self, database: Database, table: LeaseTable, kinds: Sequence[LeaseKind], classes: OpenClasses) -> None:
        """`kinds`: the kinds of lease, in the order in which they are offered."""
        self._database, self._table, self._kinds = database, table, kinds
        self._admission = table.admission
        self._classes = classes
        self._retries = {"new": RetryTimes(), "known": RetryTimes()}
        """Separate, so that many new keys do not lengthen the waits of known nodes."""

    def issue(
        self,
        node: bytes,
        request: LeaseRequest,
        progress: Progress | None,
        buffered: int,
        now: int,
        origin: Origin = LOCAL_ORIGIN,
    ) -> bytes | Refusal:
        """Return a sealed Lease that is written to the table, or the refusal. `buffered`: groups that may be drawn now.
        `origin`: where the request came from."""
        if (given := self._earlier_lease(node, request.nonce)) is not None:
            return given
        rank = self._admission.rank(node, now)
        demand: LeaseDemand | None = None
        refused = self._unfit(request, progress, now) or self._table.paid_work.refusal_for(node, origin, now)
        if refused is None and progress is not None:
            expected = self._table.lengths.expected_time(request.takes, self._table.terms.limit)
            demand = self._admission.demand(node, rank, origin, request.at_once, now, request.takes, expected)
            refused = self._denial_for(demand, now)
            if refused is None:
                answer = self._offer(self._facts_of(demand, request, progress, buffered, now))
                if not isinstance(answer, Refusal):
                    return answer
                refused = answer
        assert refused is not None
        if refused.retry_after is not None:
            wait = self._retries_of(rank).after(node, now, refused.retry_after, origin.party)
            refused = msgspec.structs.replace(refused, retry_after=wait)
            if demand is not None:
                self._admission.waits(demand, refused.code, back_by(now, wait), now)
        return refused

    def _retries_of(self, rank: Rank) -> RetryTimes:
        return self._retries["new" if rank == "new" else "known"]

    def _facts_of(
        self, demand: LeaseDemand, request: LeaseRequest, progress: Progress, buffered: int, now: int
    ) -> AskedLease:
        """Return what the kinds of lease are asked for: whether there is room, and until when a lease may last."""
        load = self._table.load(progress, now)
        refused = self._lacks_room(demand, request.version, progress, buffered, load, now)
        if refused is None:
            demand = self._shorten_demand(demand, request.version, progress, now)
        return AskedLease(demand, request, progress, refused, load.on_their_way(buffered), now)

    def _offer(self, asked: AskedLease) -> bytes | Refusal:
        """Return the first offer of a lease (rule 6), or why there is none."""
        for kind in self._kinds:
            if (answer := kind.offer(asked)) is not None:
                if kind.takes_room and not isinstance(answer, Refusal):
                    self._admission.on_grant(asked.demand, asked.now)
                    self._retries_of(asked.demand.rank).on_grant(asked.demand.requester.node, asked.now)
                return answer
        assert asked.refused is not None, "the plain kind gives a lease where there is room"
        return asked.refused

    def _earlier_lease(self, node: bytes, nonce: bytes) -> bytes | None:
        """Return the sealed Lease that answered this request before."""
        given: bytes | None = self._database.value(
            "SELECT sealed FROM leases WHERE node = ? AND nonce = ?", (node, nonce)
        )
        return given

    def _unfit(self, request: LeaseRequest, at: Progress | None, now: int) -> Refusal | None:
        """Return why this request would get no lease even in an empty room."""
        terms = self._table.terms
        if at is None:
            return refusal("not-ready", retry_after=LEAST_RETRY_MS)
        if at.finished:
            return refusal("finished")
        if at.paused:
            return refusal("paused", retry_after=PAUSED_RETRY_MS)
        if not admits(request.engine, terms.engines):
            return msgspec.structs.replace(
                refusal("engine", engine=request.engine, admitted=", ".join(terms.engines)), engines=list(terms.engines)
            )
        if not is_exact(request.engine) and self._classes.of(request.engine) is None:
            return refusal("not-calibrated", retry_after=NOT_CALIBRATED, engine=request.engine)
        known = self._table.root_of(request.era, request.version)
        if request.era != at.era or known != request.root:
            facts = {"version": request.version, "wanted": at.version}
            return refusal("wrong-version", retry_after=LEAST_RETRY_MS, **facts)
        if not fresh(at.step, request.version, terms.staleness):
            facts = {"version": request.version, "step": at.step, "limit": terms.staleness, "wanted": at.version}
            return refusal("stale-version", retry_after=LEAST_RETRY_MS, **facts)
        if wait := self._table.positions.wait(now):
            return refusal("no-prompt", retry_after=wait)
        return None

    def _denial_for(self, demand: LeaseDemand, now: int) -> Refusal | None:
        if (denied := self._admission.denial_despite_room(demand, now)) is None:
            return None
        denial, wait = denied
        return refusal(denial.code, retry_after=wait or LEAST_RETRY_MS, **denial.facts)

    def _lacks_room(
        self, demand: LeaseDemand, version: int, at: Progress, buffered: int, load: InFlight, now: int
    ) -> Refusal | None:
        terms = self._table.terms
        behind = version < at.version and self._table.is_spreading(at, now)
        window = self._table.window
        left = min(window.room(load, buffered, now, behind=behind), free_slots(at, terms, version, buffered, load))
        newest = min(window.room(load, buffered, now, behind=False), free_slots(at, terms, at.version, buffered, load))
        if left <= 0 < newest:
            return refusal("newer-version", retry_after=LEAST_RETRY_MS, version=version, wanted=at.version)
        whole = window.groups(now, behind=False)
        chance = self._table.newcomers.chance(now)
        oldest = self._table.oldest(at)
        no_room = self._admission.lacks_room(demand, whole, left, buffered, oldest, chance, now)
        facts = {"version": version, "step": at.step}
        if no_room is not None:
            return refusal(no_room.code, retry_after=LEAST_RETRY_MS, **facts, **no_room.facts)
        if self._comes_late(demand, version, at, now):
            return refusal("later", retry_after=LEAST_RETRY_MS, **facts)
        return None

    def _comes_late(self, demand: LeaseDemand, version: int, at: Progress, now: int) -> bool:
        """Tell whether a lease would hardly come back in time (rule 7)."""
        window = self._window(version, at, now)
        return comes_too_late(window, demand.record.turnarounds)

    def _window(self, version: int, at: Progress, now: int) -> float | None:
        """Return the time within which a lease must come back; None: it is not limited (timely_grants.py)."""
        if not self._table.timely.bounded:
            return None
        steps = version + self._table.terms.staleness + 1 - at.step
        return self._table.timely.window(steps, self._table.window.step, self._admission.verdict_time(now))

    def _shorten_demand(self, demand: LeaseDemand, version: int, at: Progress, now: int) -> LeaseDemand:
        """Return a demand for a training prompt, whose lease ends in time (rule 7)."""
        window, turnarounds = self._window(version, at, now), demand.record.turnarounds
        lasts = lasts_until(demand.lifetime.lasts, window, turnarounds, self._table.terms.least_ms)
        return demand._replace(lifetime=demand.lifetime._replace(lasts=lasts))
