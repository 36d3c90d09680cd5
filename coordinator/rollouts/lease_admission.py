"""The asking node against the room: what run.sqlite says of both, put to the rules of shares, lifetime and budgets.

Rules
1. The rules stand in shares.py, lifetime.py and budgets.py; this module reads what they need, and writes whose a lease
   is (`lent`), in the transaction that writes the lease.
2. An ask reads rows of its own node, connection and version, and no others.
"""

from typing import Final, NamedTuple

from coordinator.accounts.standing import Accounts, Rank
from coordinator.database import Database
from coordinator.metrics.statistics import quantile
from coordinator.rollouts.delivery_record import DeliveryRecord, read_delivery_record
from coordinator.rollouts.expiry_budgets import ExpiryBudgets
from coordinator.rollouts.lease_lifetime import (
    ENOUGH,
    REMEMBERED,
    TRY_AGAIN,
    FleetTurnarounds,
    LeaseLifetime,
    LifetimeBounds,
    lease_duration,
    too_slow,
)
from coordinator.rollouts.room_shares import WAITS, Asker, Denial, Room, RoomShares, Share
from p2p.limits.origin import Origin

VERDICTS: Final = 64
"""Last accepted groups by which the time of a verdict is measured."""
MEASURED_FOR: Final = 1_000
"""Milliseconds for which that measurement holds."""


class LeaseDemand(NamedTuple):
    """An ask that was looked at. `life`: of its lease, if it gets one."""

    asker: Asker
    rank: Rank
    life: LeaseLifetime
    holder: bytes
    record: DeliveryRecord


class LeaseOwner(NamedTuple):
    """The owner of a lease that has not ended. `reasons`: the ends of earlier leases for its position."""

    share: Share
    node: bytes
    connection: str
    reasons: str


class LeaseAdmission:
    """Use from the thread of the database."""

    def __init__(self, database: Database, bounds: LifetimeBounds, sequential: bool, accounts: Accounts) -> None:
        """`sequential`: S = 0."""
        self._database = database
        self._bounds = bounds
        self._sequential = sequential
        self._accounts = accounts
        self._shares = RoomShares()
        self._fleet = FleetTurnarounds()
        self._budgets = ExpiryBudgets(database)
        self._verdict = (0, -MEASURED_FOR)

    def start(self, now: int) -> None:
        """Take up what an earlier process knew."""
        self._database.do("DELETE FROM paces WHERE at NOT BETWEEN ? AND ?", (now - REMEMBERED, now))
        for node, p90, at in self._database.all("SELECT node, p90, at FROM paces ORDER BY at"):
            self._fleet.note(node, p90, at)
        if self._database.value("SELECT 1 FROM sums WHERE node = x'' AND verdict = 'accepted' AND groups >= 3 LIMIT 1"):
            self._shares.here(now)

    def rank(self, node: bytes, now: int) -> Rank:
        """Return how far a key is trusted."""
        return self._accounts.of(node, now).rank

    def look(self, node: bytes, rank: Rank, origin: Origin, now: int) -> LeaseDemand:
        """Return what is known of an ask."""
        record = read_delivery_record(self._database, node)
        lasts = lease_duration(record.turnarounds, self._fleet.p90(now), self._bounds)
        share: Share = "new" if rank == "new" else "slow" if lasts.slow else "known"
        open_leases, undecided = self._open_leases(node)
        if rank == "new":
            open_leases = self._open_leases_over(origin.connection)
        holder = origin.connection.encode() if rank == "new" and origin.connection else node
        return LeaseDemand(Asker(node, share, origin, open_leases, undecided, record.rate), rank, lasts, holder, record)

    def halted(self, ask: LeaseDemand, now: int) -> tuple[Denial, int] | None:
        """Return why a node gets no lease at all now, and the milliseconds for which that holds."""
        debt = self._budgets.debt(ask.holder, now)
        if debt is not None:
            return Denial("expiries", {"expired": debt.expired, "wait": debt.wait / 1000}), debt.wait
        record = ask.record
        if record.late and too_slow(record.turnarounds, record.last, now, self._bounds):
            wait = TRY_AGAIN - (now - record.last)
            own, most = quantile(record.turnarounds, 0.9) / 1000, self._bounds.most / 1000
            return Denial("too-slow", {"own": own, "most": most, "wait": wait / 1000}), wait
        return None

    def crowded(self, ask: LeaseDemand, whole: int, left: int, oldest: tuple[int, int], now: int) -> Denial | None:
        """Return why there is no room for an ask. `whole`, `left`: see `Room`. `oldest`: fresh (era, version)."""
        new, slow = self._in_use("new", oldest), self._in_use("slow", oldest)
        room = Room(whole, left, new, slow, self._verdict_time(now), self._sequential)
        return self._shares.refused(ask.asker, room, now)

    def waits(self, ask: LeaseDemand, code: str, until: int, now: int) -> None:
        """An ask was refused by `code`, and told to come again so that it does by `until`."""
        if code in WAITS:
            self._shares.waits(ask.asker, until, now)

    def relied_on(self, ask: LeaseDemand, now: int) -> bool:
        """Return whether a key is known, or none that asks is: keys that were never used before are free."""
        return ask.rank != "new" or not self._shares.known_here(now)

    def lend(self, ask: LeaseDemand, lease: bytes, era: int, version: int, reasons: str, now: int) -> None:
        """A lease goes out: in the caller's transaction."""
        asker = ask.asker
        row = (lease, asker.share, asker.node, asker.origin.connection, era, version, reasons)
        self._database.do("INSERT INTO lent VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        turnarounds = ask.record.turnarounds
        if ask.rank == "proven" and len(turnarounds) >= ENOUGH:
            p90 = int(quantile(turnarounds, 0.9))
            self._database.do("INSERT OR REPLACE INTO paces VALUES (?, ?, ?)", (asker.node, p90, now))

    def given(self, ask: LeaseDemand, now: int) -> None:
        """A lease went out: after the transaction."""
        self._shares.served(ask.asker)
        if ask.rank == "proven" and len(ask.record.turnarounds) >= ENOUGH:
            self._fleet.note(ask.asker.node, int(quantile(ask.record.turnarounds, 0.9)), now)
        else:
            self._fleet.leave(ask.asker.node)

    def lent(self, lease: bytes) -> LeaseOwner | None:
        """Return whose a lease is that has not ended."""
        row = self._database.one("SELECT share, node, connection, reasons FROM lent WHERE lease = ?", (lease,))
        return None if row is None else LeaseOwner(*row)

    def expired(self, lent: LeaseOwner, now: int) -> None:
        """A lease ended without a group: in the caller's transaction."""
        if lent.share == "new" and lent.connection:
            self._budgets.expired(lent.connection.encode(), None, now)
        else:
            self._budgets.expired(lent.node, lent.node, now)

    def _open_leases(self, node: bytes) -> tuple[int, int]:
        """(leases and undecided groups, undecided groups) of a node."""
        open_leases, running = self._database.all(
            "SELECT (SELECT count(*) FROM lent WHERE node = ?),"
            " (SELECT count(*) FROM leases WHERE state = 'open' AND node = ?)",
            (node, node),
        )[0]
        return open_leases, open_leases - running

    def _open_leases_over(self, connection: str) -> int:
        return self._database.value("SELECT groups FROM lent_over WHERE connection = ?", (connection,)) or 0

    def _in_use(self, share: Share, oldest: tuple[int, int]) -> int:
        query = "SELECT coalesce(sum(groups), 0) FROM shares WHERE share = ? AND era = ? AND version >= ?"
        return int(self._database.value(query, (share, *oldest)))

    def _verdict_time(self, now: int) -> int:
        """p90 of the milliseconds from a group received to its verdict."""
        if not 0 <= now - self._verdict[1] < MEASURED_FOR:
            rows = self._database.all(
                "SELECT v.at - s.at FROM verdicts v JOIN submissions s ON s.lease = v.lease"
                " WHERE v.verdict = 'accepted' ORDER BY v.entry DESC LIMIT ?",
                (VERDICTS,),
            )
            self._verdict = int(quantile([row[0] for row in rows], 0.9)) if rows else 0, now
        return self._verdict[0]
