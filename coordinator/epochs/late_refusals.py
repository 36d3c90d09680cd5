"""Forfeits for groups that were paid, and are refused after the fact.

Rules
1. A group that was accepted and is taken back by a `lease.reversed`, or was in quarantine on a day that ended without
   release, costs its node what it earned: of the node's pay in the epoch whose close counted it, the group's share by
   weight, rounded down. The forfeit takes it as far as it can be taken (market/holdback.py, rule 4), once per lease.
2. It is due once that epoch is closed. What is due follows from the ledger: after a restart it is due again, and a
   forfeit that was written is known by its key.
"""

import msgspec

from coordinator.accounts.ledger import Entry
from coordinator.accounts.ledger_facts import LeaseReversed, QuarantineEnded
from coordinator.epochs.market_service import MarketService
from coordinator.market.entries import ClosedNode, EpochClosed, NewEntry, StatedEnd
from coordinator.market.epochs import forfeit
from p2p.identity import public_key
from runtime.units import DAY


class LateRefusals:
    """The forfeits that are due. `read`: to be called with each entry of the ledger."""

    def __init__(self, service: MarketService) -> None:
        self._service = service
        self._due: dict[bytes, str] = {}
        """Lease -> why."""
        self._days: list[QuarantineEnded] = []
        service.watchers.append(self.read)

    @property
    def waits(self) -> bool:
        """Whether a forfeit waits for its epoch's close."""
        return bool(self._due or self._days)

    def read(self, entry: Entry) -> None:
        """Note what an entry refuses after the fact."""
        if entry.kind == "lease.reversed":
            fact = msgspec.msgpack.decode(entry.facts, type=LeaseReversed)
            if not fact.paid:
                self._due[fact.lease] = f"its verdict was reversed: {fact.why}"
        elif entry.kind == "quarantine.ended":
            day = msgspec.msgpack.decode(entry.facts, type=QuarantineEnded)
            if not day.released:
                self._days.append(day)

    def tick(self, at: int) -> None:
        """Write the forfeits that are due."""
        if not self._service.ready or not self.waits:
            return
        for day in self._days:
            for lease in self._leases_of(day):
                self._due[lease] = (
                    f"its group was in quarantine on a day that ended badly ({day.decided or 'evidence'})"
                )
        self._days.clear()
        for lease, why in list(self._due.items()):
            if self._service.ledger.find(f"forfeited:{lease.hex()}") is not None:
                del self._due[lease]
                continue
            earned = self._earned(lease)
            if earned is not None:
                node, amount = earned
                del self._due[lease]
                if amount:
                    self._service.append(self._forfeit(at, node, amount, why, lease))

    def _forfeit(self, at: int, node: str, amount: int, why: str, lease: bytes) -> NewEntry:
        return forfeit(self._service.state, at, node, amount, why[:200], lease)

    def _leases_of(self, day: QuarantineEnded) -> list[bytes]:
        """Return the leases whose groups a day kept in quarantine."""
        rows = self._service.database.all(
            "SELECT lease, at FROM verdicts WHERE node = ? AND verdict = 'accepted' AND code = 'quarantine'",
            (public_key(day.node),),
        )
        return [lease for lease, at in rows if at // DAY == day.day]

    def _earned(self, lease: bytes) -> tuple[str, int] | None:
        """Return the node of an accepted group, and what it earned; None: its epoch is not closed yet."""
        entry = self._service.ledger.find(f"lease:{lease.hex()}")
        if entry is None or entry.kind != "lease.accepted":
            return "", 0
        end = msgspec.msgpack.decode(entry.facts, type=StatedEnd)
        closed = self._service.database.value(
            "SELECT facts FROM entries WHERE seq > ? AND kind = 'epoch.closed' ORDER BY seq LIMIT 1", (entry.seq,)
        )
        if closed is None:
            return None
        nodes = msgspec.msgpack.decode(closed, type=EpochClosed).nodes
        row = next((one for one in nodes if one.node == end.node), None)
        return end.node, 0 if row is None else _share(row, end.weight)


def _share(row: ClosedNode, weight: int) -> int:
    return row.pay * weight // row.work if row.work else 0
