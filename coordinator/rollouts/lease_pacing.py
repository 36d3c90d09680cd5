"""Apply the law of leases to requests: keep its summary up, and measure what it needs. Times in milliseconds.

Rules
1. The law stands in coordinator/rollouts/pacing.py. With `pacing` "room" in the run's terms, and in sequential mode (S
   = 0), it is not applied: `room` alone paces.
2. The summary is derived from the open leases of training prompts in run.sqlite at the first request after a start, an
   absence or a new era. From then on each lease that is given, ends or is extended moves it. A node's turnaround, and
   c, the leases that it works on at once, come from its delivery record: by Little's law c is its rate times its mean
   turnaround. A new key is no supply (rule 7): keys are free, and a made-up group takes no time. A few keys would else
   promise so many groups that nobody got a lease. Which draws a node can serve follows from its median, once it has
   brought `ENOUGH` groups: one group that it brought after it was cut off would else shut it out for ever.
3. Once per `CHECKED_EVERY` the summary's leases are read anew from run.sqlite and compared. A difference is a fault in
   the log, and the summary derived anew takes its place. Either reads the open leases alone, however many have ended.
4. The learner's last `STEPS_KEPT` steps, spans from draw to draw and waits, and the supply at each draw, are a fact in
   run.sqlite (`learner_times`), so the law goes on after a restart. A time during which the clock was set back, or the
   process did not run, is none of them.
5. The share of leases that came into the buffer is measured over the last `ENDED` ended leases, and kept with the
   learner's times; 1 before the first has ended. At 0 each lease is due. The spread of turnarounds is measured over the
   last `ENDED` groups of this process, once there are `FEWEST` of them; one beyond `MOST_RATIO` times its node's mean
   counts as so much.
6. A node counts as here until it is told to ask again and a while longer, or until a lease of it is overdue. Asking
   while it pauses for expired leases, or is too slow, does not make it count.
7. Leases of new keys have a summary and a share of their own: the last `NEW_ENDED` that ended in this process, and
   those that are overdue, which count as failed. So a flood of keys that return nothing is known one turnaround later,
   long before its leases expire. Before any has ended the share is 1. The same law holds for requests of new keys: a
   stricter one would let known nodes fill every batch first, and no newcomer would ever become known.
8. A node that has waited long gets a lease in its turn, though none is due (lease_turns.py).
"""

import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np
import structlog

from echo2.coordinator.database import Database
from echo2.coordinator.learner.age import oldest_fresh
from echo2.coordinator.rollouts.delivery_record import DeliveryRecord, read_delivery_record
from echo2.coordinator.rollouts.lease_lifetime import ENOUGH
from echo2.coordinator.rollouts.lease_summary import AGES, AGES_PER_TURNAROUND, LeaseCell, LeaseSummary, lease_cell
from echo2.coordinator.rollouts.lease_turns import AskingNode, LeaseTurns
from echo2.coordinator.rollouts.pacing import (
    OVERDUE,
    STEPS_KEPT,
    LentLeases,
    PacedSituation,
    lack,
    learner_pace,
    retry_after,
    spare_supply,
)
from echo2.coordinator.rollouts.room_shares import Requester

CHECKED_EVERY: Final = 60_000
MEASURED_FOR: Final = 1_000
ENDED: Final = 64
FEWEST: Final = 8
NEW_ENDED: Final = 16
UNMEASURED_CV: Final = 0.5
UNMEASURED_TURNAROUND: Final = 60_000.0
MOST_RATIO: Final = AGES / AGES_PER_TURNAROUND
HERE: Final = 10_000
"""Least time for which a node counts after a request."""
_FACT: Final = "learner_times"

log = structlog.get_logger("coordinator")


class LearnerTimes(msgspec.Struct):
    """The learner's last times, oldest first, ms. `supplies`: groups per ms of the nodes here at each draw. `kept`:
    whether the group of each lease came into the buffer, of those that ended last."""

    steps: list[float] = []
    spans: list[float] = []
    waits: list[float] = []
    supplies: list[float] = []
    kept: list[bool] = []


class LearnerState(NamedTuple):
    """The run's progress at a request, as the law needs it. `buffered`, `undecided`: groups. `verdict`: p90 of the time
    from a group received to its verdict. `newest`: the newest published version. `publish_every`: kappa."""

    era: int
    step: int
    newest: int
    publish_every: int
    buffered: int
    undecided: int
    verdict: float


class _Open(NamedTuple):
    """An open lease. `turnaround`: of its node when it was sent. `new`: whether its key was new."""

    version: int
    sent: int
    turnaround: float
    new: bool

    @property
    def cell(self) -> LeaseCell:
        return lease_cell(self.version, self.turnaround, self.sent)


class LeasePacing:
    """The law of leases over a run. `reach`: seconds until a version is with the nodes, None while not measured."""

    def __init__(
        self, database: Database, *, applied: bool, staleness: int, batch: int, newcomers: float = 0.1
    ) -> None:
        """Pace the leases of a run, if the law is `applied`. `staleness`: S. `batch`: groups per step. `newcomers`:
        share of the leases that patient new keys get (lease_turns.py, rule 5)."""
        self.reach: Callable[[], float | None] = lambda: None
        self.applied = applied and staleness > 0
        self._database = database
        self._staleness, self._batch = staleness, batch
        stored = database.fact(_FACT)
        self.times = msgspec.msgpack.decode(stored, type=LearnerTimes) if stored else LearnerTimes()
        self._summary: LeaseSummary | None = None
        self._new = LeaseSummary()
        """The leases of new keys (rule 7)."""
        self._new_ends: deque[bool] = deque(maxlen=NEW_ENDED)
        self._turns = LeaseTurns(newcomers)
        self._era = 0
        self._open: dict[bytes, _Open] = {}
        self._ratios: deque[float] = deque(maxlen=ENDED)
        self._reached = 0.0
        """`reach` in ms."""
        self._measured_at = self._checked_at = -CHECKED_EVERY
        self._drew: int | None = None
        self._training_since: int | None = None
        self._waits_since: int | None = None

    # the learner

    def drew(self, now: int) -> None:
        """Note that the learner begins a step with a batch."""
        times = self.times
        if self._drew is not None and now >= self._drew:
            times.spans.append(float(now - self._drew))
        if self._waits_since is not None and now >= self._waits_since:
            times.waits.append(float(now - self._waits_since))
        if self.supply > 0:
            times.supplies.append(self.supply)
        for values in (times.spans, times.waits, times.supplies):
            del values[:-STEPS_KEPT]
        self._drew = self._training_since = now
        self._waits_since = None

    def stepped(self, now: int) -> bool:
        """Note that the step is made and its export is out; return whether its time is a measurement (rule 4)."""
        since, self._training_since, self._waits_since = self._training_since, None, now
        if since is None or now < since:
            return False
        self.times.steps.append(float(now - since))
        del self.times.steps[:-STEPS_KEPT]
        self._database.set_fact(_FACT, msgspec.msgpack.encode(self.times))
        return True

    def stopped(self) -> None:
        """Note that the learner lost its step, or was paused or absent: the time until its next step is no
        measurement."""
        self._drew = self._training_since = self._waits_since = None

    # the leases

    def given(
        self, lease: bytes, node: bytes, record: DeliveryRecord, era: int, version: int, now: int, *, new: bool
    ) -> None:
        """Count a lease of a training prompt. `new`: whether its key is new."""
        if self._summary is None or era != self._era:
            return
        turnaround = _turnaround(record)
        turnaround = turnaround or self._summary.turnaround or UNMEASURED_TURNAROUND
        self._open[lease] = one = _Open(version, now, turnaround, new)
        self._of(one).lease_given(one.cell)
        self._here(node, record, now + int(OVERDUE * turnaround), new=new)

    def counts(self, lease: bytes) -> None:
        """Count an open lease that did not count so far, as its twin did (twin_sets.py, rule 3)."""
        if self._summary is None or lease in self._open:
            return
        query = (
            "SELECT l.node, l.era, l.version, l.sent, coalesce(o.share = 'new', 0) FROM leases l"
            " LEFT JOIN lent o ON o.lease = l.id WHERE l.id = ?"
        )
        ((node, era, version, sent, new),) = self._database.all(query, (lease,))
        if era == self._era:
            turnaround = _turnaround(read_delivery_record(self._database, node)) or self._summary.turnaround
            self._open[lease] = one = _Open(version, sent, turnaround or UNMEASURED_TURNAROUND, bool(new))
            self._of(one).lease_given(one.cell)

    def ended(self, lease: bytes) -> None:
        """Count a lease no longer that is not open any more."""
        if (one := self._open.pop(lease, None)) is not None and self._summary is not None:
            self._of(one).lease_ended(one.cell)

    def outcome(self, *, learned: bool, new: bool) -> None:
        """Note the end of a lease that counts: whether its group came into the buffer."""
        if new:
            self._new_ends.append(learned)
            return
        self.times.kept.append(learned)
        del self.times.kept[:-ENDED]

    def came(self, lease: bytes, now: int) -> None:
        """Note that a lease's group was received, before it ends."""
        if (one := self._open.get(lease)) is not None and not one.new:
            self._ratios.append(min(MOST_RATIO, max(0, now - one.sent) / max(one.turnaround, 1.0)))

    def extended(self, lease: bytes, ms: int) -> None:
        """Note that a lease counts as sent later."""
        if (one := self._open.get(lease)) is not None and self._summary is not None:
            self._of(one).lease_ended(one.cell)
            self._open[lease] = later = one._replace(sent=one.sent + ms)
            self._of(later).lease_given(later.cell)

    def anew(self) -> None:
        """Derive the summary anew at the next request: leases were changed in run.sqlite (rule 2)."""
        self._summary = None

    def waits(self, node: bytes, record: DeliveryRecord, until: int, *, new: bool) -> None:
        """Note that a node was refused, and asks again by `until`. `new`: whether its key is new."""
        self._here(node, record, until, new=new)

    def comes_back(self, requester: Requester, until: int, now: int, *, later: bool) -> None:
        """Note that a refused node asks again by `until`. `later`: whether the law refused it."""
        self._turns.waits(_asking(requester), until, now, later=later)

    def served(self, requester: Requester, now: int) -> None:
        """Note that a node was given a lease of any kind."""
        self._turns.given(_asking(requester), now)

    def refused(
        self,
        requester: Requester,
        record: DeliveryRecord,
        version: int,
        at: LearnerState,
        now: int,
        room_for_new: Callable[[], bool],
    ) -> int | None:
        """Return after how many milliseconds a node may ask again; None: a lease is due (rule 1), or it is the node's
        turn (rule 8). `room_for_new`: whether new keys have less than their share of the room."""
        if not self.applied:
            return None
        summary = self._kept_up(at, now)
        self._here(requester.node, record, now + HERE, new=requester.share == "new")
        summary.forget(now)
        situation = self._situation(at, now)
        lent = LentLeases(self._new, self.new_chance(now))
        lacking = lack(summary, situation, version, _usual(record), lent)
        asking = _asking(requester)
        if situation is None or self._turns.may_have(asking, lacking, room_for_new, now):
            return None
        self._turns.refused(asking, lacking, situation.pace.step, now)
        return retry_after(situation)

    def new_chance(self, now: int) -> float:
        """Return the share of the last leases of new keys whose groups came into the buffer (rule 7)."""
        overdue = self._new.overdue(now, OVERDUE)
        ended = len(self._new_ends) + overdue
        return sum(self._new_ends) / ended if ended else 1.0

    @property
    def supply(self) -> float:
        """Groups per millisecond that the measured nodes here deliver."""
        return 0.0 if self._summary is None else self._summary.supply

    @property
    def step(self) -> float | None:
        """The learner's usual time for a step, ms; None: not measured."""
        pace = learner_pace(self.times.steps, self.times.spans, self.times.waits)
        return None if pace is None else pace.usual

    @property
    def spread(self) -> float:
        """The coefficient of variation of turnarounds over their node's mean (rule 5)."""
        return float(np.std(self._ratios)) if len(self._ratios) >= FEWEST else UNMEASURED_CV

    def has_spare(self, least: float) -> bool:
        """Tell whether the nodes here could make more than the learner needs, by the share `least` (pacing.py, rule 2).
        Where the law is not applied nothing is measured, and the answer is yes."""
        if not self.applied:
            return True
        times = self.times
        pace = learner_pace(times.steps, times.spans, times.waits)
        if pace is None or self._summary is None:
            return False
        supply = min([self.supply, *times.supplies])
        return spare_supply(supply, self._kept(), pace, self._batch) >= least

    def _kept_up(self, at: LearnerState, now: int) -> LeaseSummary:
        if self._summary is None or self._era != at.era:
            self._era = at.era
            self._summary = self._derived(at, now)
        elif now - self._checked_at >= CHECKED_EVERY:
            self._check(at, now)
        oldest = oldest_fresh(at.step, self._staleness)
        for one in (self._summary, self._new):
            if one.oldest != oldest:
                one.set_oldest(oldest)
        return self._summary

    def _of(self, lease: "_Open") -> LeaseSummary:
        """Return the summary in which a lease counts."""
        assert self._summary is not None
        return self._new if lease.new else self._summary

    def _rows(self) -> list[tuple[bytes, bytes, int, int, int]]:
        # "+": else SQLite would search the index of positions, which has all leases of the run.
        return self._database.all(
            "SELECT l.id, l.node, l.version, l.sent, coalesce(o.share = 'new', 0) FROM leases l"
            " LEFT JOIN lent o ON o.lease = l.id"
            " WHERE l.state = 'open' AND l.era = ? AND +l.position >= 0 AND l.counts",
            (self._era,),
        )

    def _derived(self, at: LearnerState, now: int) -> LeaseSummary:
        """Derive the summary from run.sqlite, and the nodes here from its open leases (rule 2)."""
        oldest, rows = oldest_fresh(at.step, self._staleness), self._rows()
        summary = self._summary = LeaseSummary(oldest)
        self._new = LeaseSummary(oldest)
        records = {node: read_delivery_record(self._database, node) for node in {node for _, node, *_ in rows}}
        for _, node, _, sent, new in rows:
            turnaround = _turnaround(records[node]) or UNMEASURED_TURNAROUND
            until = max(now + HERE, sent + int(OVERDUE * turnaround))
            self._here(node, records[node], until, new=bool(new))
        usual = summary.turnaround or UNMEASURED_TURNAROUND
        self._open = {
            lease: _Open(version, sent, _turnaround(records[node]) or usual, bool(new))
            for lease, node, version, sent, new in rows
        }
        for one in self._open.values():
            self._of(one).lease_given(one.cell)
        self._checked_at = now
        return summary

    def _check(self, at: LearnerState, now: int) -> None:
        """Compare the summary's leases with run.sqlite (rule 3)."""
        self._checked_at = now
        assert self._summary is not None
        anew = {False: LeaseSummary(), True: LeaseSummary()}
        stored = self._rows()
        for lease, _, version, sent, new in stored:
            known = self._open.get(lease)
            turnaround = known.turnaround if known else UNMEASURED_TURNAROUND
            anew[bool(new)].lease_given(lease_cell(version, turnaround, sent))
        cells = {False: self._summary.cells, True: self._new.cells}
        if {new: one.cells for new, one in anew.items()} != cells or {row[0] for row in stored} != self._open.keys():
            log.error("summary of leases is wrong", open=len(stored), counted=len(self._open))
            self._summary = self._derived(at, now)

    def _here(self, node: bytes, record: DeliveryRecord, until: int, *, new: bool) -> None:
        turnaround = _turnaround(record)
        if self._summary is None or turnaround is None or new:
            return
        known = self._summary.nodes.get(node)
        servers = record.rate * turnaround
        self._summary.node_here(node, turnaround, servers or 1.0, max(until, known.until if known else 0))

    def _situation(self, at: LearnerState, now: int) -> PacedSituation | None:
        times = self.times
        pace = learner_pace(times.steps, times.spans, times.waits)
        if pace is None:
            return None
        if not 0 <= now - self._measured_at < MEASURED_FOR:
            self._reached, self._measured_at = 1000 * (self.reach() or 0.0), now
        return PacedSituation(
            now=now,
            step=at.step,
            training_since=self._training_since,
            newest=at.newest,
            publish_every=at.publish_every,
            staleness=self._staleness,
            batch=self._batch,
            buffered=at.buffered,
            undecided=at.undecided,
            verdict=at.verdict,
            broadcast=self._reached,
            kept=self._kept(),
            cv=self.spread,
            least_supply=min(times.supplies, default=math.inf),
            pace=pace,
        )

    def _kept(self) -> float:
        """Return the share of the last ended leases whose groups may be learned from (rule 5)."""
        kept = self.times.kept
        return sum(kept) / len(kept) if kept else 1.0


def _asking(requester: Requester) -> AskingNode:
    origin = requester.origin
    return AskingNode((origin.party, origin.connection, requester.node), requester.share == "new")


def _usual(record: DeliveryRecord) -> float | None:
    """Return the turnaround by which a node can serve a draw (rule 2); None: it is not measured well enough."""
    times = record.turnarounds
    return statistics.median_low(times) if len(times) >= ENOUGH else None


def _turnaround(record: DeliveryRecord) -> float | None:
    """Return a node's mean turnaround; None: it has brought no group."""
    return sum(record.turnarounds) / len(record.turnarounds) if record.turnarounds else None
