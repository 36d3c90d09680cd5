"""The table of leases: a lease lets one node generate one group, under one version, until it expires.

Rules
1. coordinator/leases/lease_issuer.py decides who gets a lease, and lease_writer.py writes it here.
2. The room of version p is (S + p + 1 - step) * batch - buffered - undecided - running, in groups, all read at the
   request, without late leases (lease_lifetime.py, rule 5); the window (lease_window.py) bounds it. The table
   `on_their_way` counts open and received leases per version, in the transaction that moves them, and only versions
   that are fresh now are added up. A single running total would also count groups that are shed later, and would one
   day give no lease any more.
3. States: open -> received -> decided, or open -> expired, or open -> returned where its node gives it back before. The
   last three are final.
4. The coordinator's absence costs no node: `resume` extends every open lease by the time since the last `beat`.
5. A lease that ends without a group gives its prompt back, to be leased again.
"""

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.strikes import AT_ONCE, STRIKE_CODES
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.age import oldest_fresh
from echo2.coordinator.leases.answer_lengths import AnswerLengths
from echo2.coordinator.leases.expiry_budgets import parts_of_return
from echo2.coordinator.leases.lease_admission import LeaseAdmission
from echo2.coordinator.leases.lease_lifetime import LifetimeBounds
from echo2.coordinator.leases.lease_rows import LeaseRows, State
from echo2.coordinator.leases.lease_terms import InFlight, LeaseTerms, Progress
from echo2.coordinator.leases.lease_window import LastDraws, LeaseWindow
from echo2.coordinator.leases.newcomer_odds import NewcomerOdds
from echo2.coordinator.leases.paid_work import PaidWork
from echo2.coordinator.leases.twin_sets import TwinSets
from echo2.coordinator.prompts.prompt_positions import PromptPositions
from echo2.coordinator.prompts.prompts import PromptSource
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.runtime.stand_ins import or_stand_in

_FACT: Final = "last draws"
Early = Literal["superseded", "declined"]
"""Codes of a lease that ended before its time: its group cannot be drawn any more, or its node gave it back."""


def bounds_of(terms: LeaseTerms) -> LifetimeBounds:
    return LifetimeBounds(terms.first_ms, terms.least_ms, terms.most_ms)


class LeaseTable(LeaseRows):
    """The table of leases, which moves them from state to state and counts them, and the parts that follow each."""

    def __init__(
        self,
        database: Database,
        terms: LeaseTerms,
        prompts: PromptSource,
        accounts: Accounts,
        paid_work: PaidWork,
        *,
        reach: Callable[[], float | None],
    ) -> None:
        """`paid_work`: tells whom the run pays. `reach`: returns the seconds until a version is in use at a node; None:
        not measured."""
        super().__init__(database)
        self.terms = terms
        self.positions = PromptPositions(database, prompts, by_variance=terms.prompts == "variance")
        self.twins = TwinSets(database)
        self.reach = reach
        self.paid_work = paid_work
        self.timely = paid_work.timely
        self.lengths = AnswerLengths()
        self.admission = LeaseAdmission(
            database, bounds_of(terms), terms.staleness == 0, accounts, terms.per_node, terms.newcomers
        )
        stored = database.fact(_FACT)
        last = msgspec.msgpack.decode(stored, type=LastDraws) if stored else None
        window = or_stand_in("window", LeaseWindow)
        self.window: LeaseWindow = window(terms.staleness, terms.batch_groups, last)
        self.newcomers = NewcomerOdds()
        self.scored: dict[bytes, tuple[int, int]] = {}
        """Received leases whose groups an environment scores now, and (era, version) of each."""

    def take(self, terms: LeaseTerms) -> None:
        """Take other terms: leases from now on have them."""
        self.terms, self.window.batch = terms, terms.batch_groups
        self.admission.take(bounds_of(terms), terms.per_node, terms.newcomers)

    def publish(self, era: int, version: int, root: bytes, now: int) -> None:
        """Let nodes request leases for a version from now on. Publishing it twice has no effect. Raises `ValueError`
        for another root under the same number."""
        known = self.root_of(era, version)
        if known is not None and known != root:
            raise ValueError(f"version {version} was published with another root")
        self._database.do("INSERT OR IGNORE INTO versions VALUES (?, ?, ?, ?)", (era, version, root, now))

    def move(self, lease: bytes, state: State, *, twins: bool = True) -> None:
        """Change the state of a lease, in the caller's transaction. A trigger keeps final states. `twins`: whether its
        set may have another lease."""
        self._database.later("UPDATE leases SET state = ? WHERE id = ?", (state, lease))
        self.newcomers.close(lease)
        self.scored.pop(lease, None)
        if twins:
            self.recount(lease)

    def recount(self, lease: bytes) -> None:
        """Let the set of a lease count once (twin_sets.py, rule 3)."""
        self.twins.recount(lease)

    def on_decided(self, end: Decided) -> None:
        """End a lease as its verdict says, in that transaction."""
        lease, group = end.lease.id, end.accepted
        if (good := end.good) is not None:
            self.positions.window.on_good_group(end.lease, good.party, good.summary, good.rewards)
        if group is not None:
            learned = group.trainable and (group.varied or not self.terms.refill)
            self.accept(lease, learned=learned, share=group.share, twins=group.twins)
        elif not end.is_late:
            early: State = "expired" if end.code == "expired" else "returned"
            self.fail(lease, "decided" if end.is_group else early, end.code, end.now)

    def accept(self, lease: bytes, *, learned: bool, share: str | None, twins: bool) -> None:
        """End a lease whose group is accepted. `learned`: whether it may be learned from. `share`: share of the room
        that the lease took; None: it did not count. `twins`: see `move`."""
        if share == "new":
            self.newcomers.end(learned=learned)
        self.move(lease, "decided", twins=twins)

    def fail(self, lease: bytes, state: State, code: str, now: int) -> None:
        """End a lease that earned nothing: its position may be leased again, and an expiry or a strike is counted
        (expiry_budgets.py, rule 4). `code`: code of the refusal, "expired", or an `Early` one."""
        lent = self.admission.owner_of_lease(lease)
        query = "SELECT o.share FROM lent o JOIN leases l ON l.id = o.lease WHERE l.id = ? AND l.counts"
        if self._database.value(query, (lease,)) == "new":
            self.newcomers.end(learned=False)
        self.move(lease, state)
        if lent is None:
            return
        position, attempt = self._database.all("SELECT position, attempt FROM leases WHERE id = ?", (lease,))[0]
        if not self.twins.is_canary(lease) and not self.twins.is_pending(lease):
            self.positions.on_lease_end(position, attempt, lent.reasons, code, now)
        if code == "expired":
            self.admission.on_expiry(lent, now)
        elif code == "declined":
            self.admission.on_expiry(lent, now, self._parts_of_return(lease, now))
        elif code in STRIKE_CODES | AT_ONCE:
            self.admission.on_strike(lent, now)
        elif code == "superseded":
            self._note_superseded(lease)

    def _parts_of_return(self, lease: bytes, now: int) -> int:
        """Return what a lease that is given back counts (expiry_budgets.py, rule 5)."""
        document, sent = self._database.all("SELECT document, sent FROM leases WHERE id = ?", (lease,))[0]
        signed = decode(document, Lease)
        return parts_of_return(now - sent, signed.expires - signed.sent)

    def _note_superseded(self, lease: bytes) -> None:
        """Note that a lease was superseded while its node worked on earlier ones (superseded_leases.py, rule 6)."""
        self._database.do(
            "INSERT INTO superseded SELECT o.id FROM leases o WHERE o.id = ? AND NOT EXISTS (SELECT 1 FROM leases l"
            " JOIN submissions s ON s.lease = l.id WHERE l.node = o.node AND l.sent > o.sent)",
            (lease,),
        )

    def is_spreading(self, at: Progress, now: int) -> bool:
        """Tell whether the newest version may still be on its way to nodes (lease_window.py, rule 4)."""
        query = "SELECT at FROM versions WHERE era = ? AND version = ?"
        published = self._database.value(query, (at.era, at.version))
        return published is not None and 0 <= now - published < 1000 * (self.reach() or 0.0)

    def end_step(self, now: int) -> bool:
        """Note that the learner has ended its step; return whether its time is a measurement."""
        measured = self.window.end_step(now)
        if measured:
            self._database.set_fact(_FACT, msgspec.msgpack.encode(self.window.last))
        return measured

    def end_now(self, lease: bytes, now: int) -> None:
        """Let an open lease's time end now, in the caller's transaction: any group for it is late."""
        self._database.do("UPDATE leases SET expires = min(expires, ?) WHERE id = ? AND state = 'open'", (now, lease))

    def extend(self, lease: bytes, ms: int) -> None:
        """Let an open lease end later, as if it had been sent later: the time is no part of a turnaround."""
        query = "UPDATE leases SET sent = sent + ?, expires = expires + ? WHERE id = ? AND state = 'open'"
        self._database.do(query, (ms, ms, lease))

    def load(self, progress: Progress, now: int) -> InFlight:
        """Count the groups on their way in the learner's era that are not too old already."""
        oldest = self.oldest(progress)
        running, undecided = self._database.all(
            "SELECT coalesce(sum(open - twin_open), 0), coalesce(sum(received - twin_received), 0)"
            " FROM on_their_way WHERE era = ? AND version >= ?",
            oldest,
        )[0]
        late = sum(count for version, count in self.late(oldest[0], now).items() if version >= oldest[1])
        scored = sum(version >= oldest for version in self.scored.values())
        return InFlight(undecided, running - self._overdue(now, oldest), scored, late)

    def oldest(self, at: Progress) -> tuple[int, int]:
        """Return (era, version) of the oldest version whose groups may still be drawn."""
        return at.era, oldest_fresh(at.step, self.terms.staleness)

    def _overdue(self, now: int, oldest: tuple[int, int]) -> int:
        """Count the open leases whose time has passed: those that expired since the last tick."""
        where = "state = 'open' AND expires < ? AND era = ? AND version >= ? AND counts"
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
            query = "UPDATE leases SET sent = sent + ?, expires = expires + ? WHERE state = 'open' AND expires >= ?"
            self._database.do(query, (away, away, seen))
            query = "UPDATE leases SET sent = ?, expires = expires - sent + ? WHERE state = 'open' AND sent > ?"
            self._database.do(query, (now, now, now))
            self.beat(now)
            self.admission.start(now)
        self.newcomers.forget()
        self.window.stop()
        return away

    def _count(self, where: str, parameters: tuple[Any, ...]) -> int:
        return int(self._database.value(f"SELECT count(*) FROM leases WHERE {where}", parameters))
