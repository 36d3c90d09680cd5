"""Forfeits for groups that were paid, and are refused after the fact.

Rules
1. A group that is taken back costs its node its share in the node's pay (market/forfeit_shares.py). The forfeit takes
   it as far as it can be taken (market/holdback.py, rule 4), once per lease.
2. It is due once that epoch is closed. What is due follows from the ledger: after a restart it is due again, and a
   forfeit that was written is known by its key.
3. A tick looks at one day and at `AT_ONCE` groups, and at each group once per close of an epoch: a key with many groups
   delays no request for long.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from echo2.coordinator.accounts import quarantine, reversals
from echo2.coordinator.epochs.market_service import MarketService
from echo2.coordinator.market.entries import EpochClosed, StatedEnd
from echo2.coordinator.market.epochs import forfeit
from echo2.coordinator.market.forfeit_shares import share
from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import LeaseReversed, QuarantineEnded
from echo2.p2p.identity import public_key
from echo2.runtime.units import DAY

AT_ONCE: Final = 64


class LateRefusals:
    """The forfeits that are due. `read`: read to be called with each entry of the ledger."""

    def __init__(self, service: MarketService) -> None:
        self._service = service
        self._due: dict[bytes, str] = {}
        """Lease -> why."""
        self._days = deque[QuarantineEnded]()
        self._looks = deque[bytes]()
        """Leases to look at."""
        self._begun = False
        self._closed: tuple[int, dict[str, ClosedNode]] = (0, {})
        """The epoch whose close was read last, and its rows by node."""
        service.watchers.append(self.read)

    @property
    def waits(self) -> bool:
        """True while a forfeit waits for its epoch's close."""
        return bool(self._due or self._days)

    def read(self, entry: Entry) -> None:
        """Note what an entry refuses after the fact."""
        if entry.kind == "lease.reversed":
            fact = msgspec.msgpack.decode(entry.facts, type=LeaseReversed)
            if not fact.paid:
                self._add(fact.lease, f"its verdict was reversed: {fact.why}")
        elif entry.kind == "quarantine.ended":
            day = msgspec.msgpack.decode(entry.facts, type=QuarantineEnded)
            if not day.released:
                self._days.append(day)
        elif entry.kind == "epoch.closed":
            self._looks = deque(self._due)

    def _add(self, lease: bytes, why: str) -> None:
        self._due[lease] = why
        self._looks.append(lease)

    def tick(self, at: int) -> None:
        """Write the forfeits that are due."""
        if not self._service.ready:
            return
        if not self._begun:
            self._begun = True
            for entry in self._before_the_snapshot():
                self.read(entry)
        if self._days:
            day = self._days.popleft()
            for lease in self._leases_of(day):
                self._add(lease, f"its group was in quarantine on a day that ended badly ({day.decided or 'evidence'})")
        for _ in range(min(AT_ONCE, len(self._looks))):
            self._look(self._looks.popleft(), at)

    def _look(self, lease: bytes, at: int) -> None:
        """Write the forfeit of a lease, unless its epoch is not closed."""
        if lease not in self._due or (earned := self._earnings_of(lease)) is None:
            return
        why, (node, amount) = self._due.pop(lease), earned
        if amount and self._service.ledger.find(f"forfeited:{lease.hex()}") is None:
            self._service.append(forfeit(self._service.state, at, node, amount, why[:200], lease))

    def _before_the_snapshot(self) -> Iterator[Entry]:
        """Yield the entries that refuse something, as far as the market's start did not read them (rule 2)."""
        for prefix in (reversals.PREFIX, quarantine.PREFIX):
            rows = self._service.database.all(
                "SELECT seq FROM entries WHERE key >= ? AND key < ? AND seq <= ? ORDER BY key",
                (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1), self._service.begun),
            )
            for (seq,) in rows:
                entry = self._service.ledger.entry(seq)
                assert entry is not None
                yield entry

    def _leases_of(self, day: QuarantineEnded) -> list[bytes]:
        """Return the leases whose groups a day kept in quarantine."""
        rows = self._service.database.all(
            "SELECT lease, at FROM verdicts WHERE lease IN (SELECT id FROM leases WHERE node = ? AND sent < ?)"
            " AND verdict = 'accepted' AND code = 'quarantine'",
            (public_key(day.node), (day.day + 1) * DAY),
        )
        return [lease for lease, at in rows if at // DAY == day.day]

    def _earnings_of(self, lease: bytes) -> tuple[str, int] | None:
        """Return the node of an accepted group, and what it earned; None: its epoch is not closed yet."""
        entry = self._service.ledger.find(f"lease:{lease.hex()}")
        if entry is None or entry.kind != "lease.accepted":
            return "", 0
        end = msgspec.msgpack.decode(entry.facts, type=StatedEnd)
        state = self._service.state
        newest = state.epoch - (state.open is not None)
        epoch = 1 + bisect_right(range(1, newest + 1), entry.seq, key=self._closing)
        if epoch > newest:
            return None
        row = self._rows(epoch).get(end.node)
        return end.node, 0 if row is None else share(row, end.weight)

    def _closing(self, epoch: int) -> int:
        """Return the number of the entry that closed an epoch."""
        return int(self._service.database.value("SELECT seq FROM entries WHERE key = ?", (f"epoch:{epoch}:closed",)))

    def _rows(self, epoch: int) -> dict[str, ClosedNode]:
        if self._closed[0] != epoch:
            entry = self._service.ledger.find(f"epoch:{epoch}:closed")
            assert entry is not None
            rows = msgspec.msgpack.decode(entry.facts, type=EpochClosed).nodes
            self._closed = epoch, {row.node: row for row in rows}
        return self._closed[1]
