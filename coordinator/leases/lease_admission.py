"""Decide whether a requesting node gets a lease: reads the facts from run.sqlite and applies the rules to them.

Rules
1. The rules stand in coordinator/leases/open_lease_limit.py, room_shares.py, lease_lifetime.py and expiry_budgets.py.
   This module reads the facts that they need. It writes the owner of a lease (table `lent`) in the transaction that
   writes the lease.
2. A request reads rows of its own node and connection, the sums per version, and once per `MEASURED_FOR` the last
   `VERDICTS` accepted groups: its cost does not grow with the number of nodes. It grows with the leases that the node
   has open, which are bounded.
"""

from typing import Final, NamedTuple

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.delivery_record import DeliveryRecord, read_delivery_record
from echo2.coordinator.leases.expiry_budgets import EXPIRY_PARTS, FREE_OF_PARTY, ExpiryBudgets, holders_of_new_key
from echo2.coordinator.leases.lease_lifetime import (
    ENOUGH_PROVEN_NODES,
    FLEET_MEMORY_MS,
    TRY_AGAIN,
    FleetTurnarounds,
    LeaseLifetime,
    LifetimeBounds,
    lease_duration,
    quick_turnaround,
    too_slow,
)
from echo2.coordinator.leases.open_lease_limit import most_open
from echo2.coordinator.leases.room_shares import WAITING_CODES, Denial, Requester, Room, RoomShares, Share
from echo2.ledger.standing import Rank
from echo2.p2p.limits.origin import Origin
from echo2.runtime.quantiles import quantile

VERDICTS: Final = 64
"""The number of last accepted groups from which the time to a verdict is measured."""
MEASURED_FOR: Final = 1_000
"""Milliseconds for which that measurement is used."""


class LeaseDemand(NamedTuple):
    """A lease request with the facts about its node. `lifetime`: lifetime of its lease, if it gets one. `holders`:
    holders of its budgets (expiry_budgets.py, rule 2). `running`: its open leases, those that are overdue left out.
    `first`: the key has no accepted group, and no canary that is open or undecided. `paying`: it has such a canary.
    `expected`: milliseconds that a group of the mean length takes it by its own word; None: not known."""

    requester: Requester
    rank: Rank
    lifetime: LeaseLifetime
    holders: list[bytes]
    record: DeliveryRecord
    running: int
    first: bool
    paying: bool
    expected: int | None = None


class LeaseOwner(NamedTuple):
    """The owner of a lease that has not ended. `origin`: origin of its request. `reasons`: codes of the earlier ends of
    its position."""

    share: Share
    node: bytes
    origin: Origin
    reasons: str


class LeaseAdmission:
    """The rules of shares, lifetimes and budgets, applied to lease requests. Use from the thread of the database."""

    def __init__(
        self,
        database: Database,
        bounds: LifetimeBounds,
        sequential: bool,
        accounts: Accounts,
        per_node: int,
        newcomers: float = 0.1,
    ) -> None:
        """Apply the rules within `bounds`. `sequential`: S = 0. `per_node`: most open leases of an unmeasured node.
        `newcomers`: the share of new keys in the room (room_shares.py)."""
        self._database = database
        self._bounds = bounds
        self._per_node = per_node
        self._sequential = sequential
        self._accounts = accounts
        self._shares = RoomShares(newcomers)
        self._fleet = FleetTurnarounds()
        self._budgets = ExpiryBudgets(database)
        self._verdict = (0, -MEASURED_FOR)

    def take(self, bounds: LifetimeBounds, per_node: int, newcomers: float) -> None:
        """Take other settings, as those of the constructor."""
        self._bounds, self._per_node, self._shares.newcomers = bounds, per_node, newcomers

    def start(self, now: int) -> None:
        """Restore the fleet's measurements of an earlier process. In a run with 3 accepted groups, known keys count as
        present at first."""
        self._database.do("DELETE FROM paces WHERE at NOT BETWEEN ? AND ?", (now - FLEET_MEMORY_MS, now))
        for node, p90, at in self._database.all("SELECT node, p90, at FROM paces ORDER BY at"):
            self._fleet.note(node, p90, at)
        if self._database.value("SELECT 1 FROM sums WHERE node = x'' AND verdict = 'accepted' AND groups >= 3 LIMIT 1"):
            self._shares.note_known(now)

    def rank(self, node: bytes, now: int) -> Rank:
        return self._accounts.of(node, now).rank

    def demand(
        self,
        node: bytes,
        rank: Rank,
        origin: Origin,
        at_once: int,
        now: int,
        stated: int | None = None,
        expected: int | None = None,
    ) -> LeaseDemand:
        """Return a node's request with the facts about the node. `at_once`: groups that it says it can use. `stated`:
        milliseconds that a group at the limit takes it by its own word; None: it says nothing. `expected`: those that a
        group of the mean length takes it then; None: not known."""
        open_leases, running = self._open_leases(node, now)
        undecided = open_leases - running
        record = read_delivery_record(self._database, node, running)
        fleet = self._fleet.p90(now)
        if stated is not None and rank == "new" and self._count_lengthened(origin.party) >= FREE_OF_PARTY:
            stated = None
        lifetime = lease_duration(record.turnarounds, fleet, self._bounds, stated, expected)
        share: Share = "new" if rank == "new" else "slow" if lifetime.slow or record.lost else "known"
        quick = quick_turnaround(fleet, self._bounds)
        most_leases = most_open(self._per_node, at_once, rank, record, quick)
        if rank == "new":
            lent = "SELECT groups FROM lent_over WHERE connection = ?"
            open_leases = self._database.value(lent, (origin.connection,)) or 0
        holders = [holder for holder, _ in holders_of_new_key(origin)] if rank == "new" else []
        requester = Requester(node, share, origin, open_leases, undecided, record.rate, most_leases)
        unpaid = rank == "new" and not self._accounts.account(node).accepted
        paying = unpaid and self._has_canary(node)
        first = unpaid and not paying
        return LeaseDemand(requester, rank, lifetime, holders or [node], record, running, first, paying, expected)

    def _has_canary(self, node: bytes) -> bool:
        """Tell whether a node has a canary that is open or undecided."""
        query = "SELECT 1 FROM lent o JOIN leases l ON l.id = o.lease WHERE o.node = ? AND l.twin = 'canary' LIMIT 1"
        return self._database.one(query, (node,)) is not None

    def denial_despite_room(self, demand: LeaseDemand, now: int) -> tuple[Denial, int] | None:
        """Return why a node gets no lease whatever room there is, and for how many milliseconds; 0: the least wait."""
        if demand.running >= demand.requester.most_open:
            return Denial("too-many-leases", {"held": demand.running, "most": demand.requester.most_open}), 0
        if demand.paying:
            return Denial("too-many-leases", {"held": max(1, demand.running), "most": 1}), 0
        debts = [debt for holder in demand.holders if (debt := self._budgets.debt(holder, now)) is not None]
        if debts:
            debt = max(debts, key=lambda one: one.wait)
            return Denial("expiries", {"expired": debt.expired, "wait": debt.wait / 1000}), debt.wait
        record = demand.record
        if record.late and too_slow(record.turnarounds, record.last, now, self._bounds):
            wait = TRY_AGAIN - (now - record.last)
            own, most = quantile(record.turnarounds, 0.9) / 1000, self._bounds.most / 1000
            return Denial("too-slow", {"own": own, "most": most, "wait": wait / 1000}), wait
        if not record.turnarounds and demand.expected is not None and demand.expected > self._bounds.most:
            facts = {"own": demand.expected / 1000, "most": self._bounds.most / 1000, "wait": TRY_AGAIN / 1000}
            return Denial("too-slow", facts), TRY_AGAIN
        return None

    def lacks_room(
        self,
        demand: LeaseDemand,
        whole: int,
        left: int,
        buffered: int,
        oldest: tuple[int, int],
        chance: float,
        now: int,
    ) -> Denial | None:
        """Return why there is no room for a request. `whole`, `left`, `buffered`, `chance`: see `Room`. `oldest`: the
        oldest (era, version) that is fresh."""
        new, slow = self._in_use("new", oldest) - self._late_of_new(oldest, now), self._in_use("slow", oldest)
        room = Room(whole, left, new, slow, self._sequential, chance, buffered)
        return self._shares.denial_for(demand.requester, room, now)

    def usual_time(self, now: int) -> float | None:
        """Return the p90 of the milliseconds from a lease to its group, over the proven nodes; None: too few are."""
        return self._fleet.p90(now)

    def waits(self, demand: LeaseDemand, code: str, until: int, now: int) -> None:
        """Note that a request was refused by `code`, and that its node retries by `until`."""
        if code in WAITING_CODES:
            self._shares.waits(demand.requester, until, now)

    def relied_on(self, demand: LeaseDemand, now: int) -> bool:
        """Tell whether a returned position may go to this node at once (prompt_positions.py, rule 2), as far as its
        rank counts: its key is known, or no known key makes requests. New keys are free."""
        return demand.rank != "new" or not self._shares.known_present(now)

    def lend(self, demand: LeaseDemand, lease: bytes, era: int, version: int, reasons: str, now: int) -> None:
        """Write the owner of a new lease, and the p90 of a proven node, in the caller's transaction."""
        requester = demand.requester
        row = (lease, requester.share, requester.node, requester.origin.connection, era, version, reasons)
        self._database.do("INSERT INTO lent VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        turnarounds = demand.record.turnarounds
        if demand.rank == "proven" and len(turnarounds) >= ENOUGH_PROVEN_NODES:
            p90 = int(quantile(turnarounds, 0.9))
            self._database.do("INSERT OR REPLACE INTO paces VALUES (?, ?, ?)", (requester.node, p90, now))

    def on_grant(self, demand: LeaseDemand, now: int) -> None:
        """Note that a lease was given. Call after the transaction."""
        self._shares.on_service(demand.requester)
        if demand.rank == "proven" and len(demand.record.turnarounds) >= ENOUGH_PROVEN_NODES:
            self._fleet.note(demand.requester.node, int(quantile(demand.record.turnarounds, 0.9)), now)
        else:
            self._fleet.leave(demand.requester.node)

    def owner_of_lease(self, lease: bytes) -> LeaseOwner | None:
        """Return the owner of a lease that has not ended; None for any other."""
        row = self._database.one(
            "SELECT o.share, o.node, o.connection, l.party, o.reasons FROM lent o JOIN leases l ON l.id = o.lease"
            " WHERE o.lease = ?",
            (lease,),
        )
        return None if row is None else LeaseOwner(row[0], row[1], Origin(row[2], row[3]), row[4])

    def on_expiry(self, lent: LeaseOwner, now: int, parts: int = EXPIRY_PARTS) -> None:
        """Count a lease that ended without a group, in the caller's transaction. `parts`: expiry_budgets.py, rule 5."""
        if lent.share == "new" and lent.origin.connection:
            self._budgets.on_end_of_new(lent.origin, now, parts)
        else:
            self._budgets.on_expiry(lent.node, lent.origin.party, now, parts)

    def on_strike(self, lent: LeaseOwner, now: int) -> None:
        """Count a lease whose group was refused for a strike, in the caller's transaction: of new keys alone
        (expiry_budgets.py, rule 4)."""
        if lent.share == "new":
            self._budgets.on_end_of_new(lent.origin, now)

    def _open_leases(self, node: bytes, now: int) -> tuple[int, int]:
        """Return (leases and undecided groups, leases) of a node; leases that are overdue are left out."""
        lent, overdue, running = self._database.all(
            "SELECT (SELECT count(*) FROM lent WHERE node = ?),"
            " (SELECT count(*) FROM leases WHERE state = 'open' AND node = ? AND expires < ?),"
            " (SELECT count(*) FROM leases WHERE state = 'open' AND node = ? AND expires >= ?)",
            (node, node, now, node, now),
        )[0]
        return lent - overdue, running

    def _in_use(self, share: Share, oldest: tuple[int, int]) -> int:
        query = "SELECT coalesce(sum(groups), 0) FROM shares WHERE share = ? AND era = ? AND version >= ?"
        return int(self._database.value(query, (share, *oldest)))

    def _count_lengthened(self, party: str) -> int:
        """Count the open leases of a party's new keys that last longer by their word (lease_lifetime.py, rule 1)."""
        query = (
            "SELECT count(*) FROM leases l JOIN lent o ON o.lease = l.id WHERE l.state = 'open'"
            " AND l.late_after IS NOT NULL AND l.party = ? AND o.share = 'new'"
        )
        return int(self._database.value(query, (party,)))

    def _late_of_new(self, oldest: tuple[int, int], now: int) -> int:
        """Count the leases of new keys that are late (lease_lifetime.py, rule 5)."""
        query = (
            "SELECT count(*) FROM leases l JOIN lent o ON o.lease = l.id WHERE l.state = 'open'"
            " AND l.sent + l.late_after < ? AND l.late_after IS NOT NULL AND o.share = 'new'"
            " AND o.era = ? AND o.version >= ? AND l.twin != 'canary'"
        )
        return int(self._database.value(query, (now, *oldest)))

    def verdict_time(self, now: int) -> int:
        """Return the p90 of the milliseconds from a group received to its verdict."""
        if not 0 <= now - self._verdict[1] < MEASURED_FOR:
            rows = self._database.all(
                "SELECT v.at - s.at FROM verdicts v JOIN submissions s ON s.lease = v.lease"
                " WHERE v.verdict = 'accepted' ORDER BY v.entry DESC LIMIT ?",
                (VERDICTS,),
            )
            self._verdict = int(quantile([row[0] for row in rows], 0.9)) if rows else 0, now
        return self._verdict[0]
