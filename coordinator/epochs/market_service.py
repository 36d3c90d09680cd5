"""The state of the market beside the ledger that it follows from: reads entries as they come, and appends new ones.

Rules
1. The state is that of `MarketState.take` over all entries of the ledger, in their order. `read` catches up with the
   ledger, whoever wrote to it. Nothing else changes the state.
2. At a start the state comes from the newest snapshot (market_snapshots.py) and the entries behind it, in slices, so
   that a long ledger delays no request. Until that is done nothing is appended, and no node gets a lease.
3. An entry is appended, and read into the state, in one transaction: one that the state refuses is not written.
4. The price of a node is that of the open epoch's plan, also in its run-off. Places are looked up by node: requests of
   nodes do no work in proportion to their number.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.epochs.market_snapshots import MarketSnapshots
from echo2.coordinator.epochs.presence import Kind
from echo2.coordinator.market.activation import StandbyNode
from echo2.coordinator.market.entries import NewEntry
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.market.prices import PricedNode
from echo2.ledger.ledger_entries import Entry

READ_SLICE_SECONDS: Final = 0.1
"""Seconds for which one call of `read` reads entries."""
CLOCK_LOOK_ENTRIES: Final = 512
"""Entries between two looks at the clock."""


class _Places(NamedTuple):
    """The places of an epoch's nodes, by peer id. `priced`: also those in their run-off."""

    epoch: int
    active: frozenset[str]
    priced: dict[str, PricedNode]
    standby: dict[str, StandbyNode]


_NO_PLACES: Final = _Places(0, frozenset(), {}, {})


class MarketService:
    """The market's state of a run, and its ledger. `ready`: whether the whole ledger was read since the start.
    `watchers`: called with each entry as it is read."""

    def __init__(self, database: Database, ledger: Ledger, run: bytes) -> None:
        self.database = database
        self.ledger = ledger
        self.ready = False
        self.watchers: list[Callable[[Entry], None]] = []
        self.snapshots = MarketSnapshots(database, ledger)
        self.state, self._last = self.snapshots.newest(run) or (MarketState(run), 0)
        self.begun = self._last
        """The entry behind which the snapshot stands: `watchers` see later ones alone; 0: they see all."""
        self._places = _NO_PLACES
        self.newest = max((one[-1].closed for one in self.state.tranches.values() if one), default=0)
        """The time at which the newest epoch was opened or closed, ms."""

    def read(self) -> bool:
        """Read the entries that were written since, for at most `READ_SLICE_SECONDS` at a start; return whether all
        were read."""
        until, count = time.monotonic() + READ_SLICE_SECONDS, 0
        with contextlib.closing(self.ledger.entries(after=self._last)) as entries:
            for entry in entries:
                self._take(entry)
                count += 1
                if not self.ready and count % CLOCK_LOOK_ENTRIES == 0 and time.monotonic() >= until:
                    return False
        self.ready = True
        return True

    def _take(self, entry: Entry) -> None:
        self.state.take(entry)
        self._last = entry.seq
        if entry.kind in ("epoch.opened", "epoch.closed"):
            self.newest = max(self.newest, entry.at)
        for watch in self.watchers:
            watch(entry)

    def append(self, new: NewEntry | None) -> Entry | None:
        """Write a new entry and read it (rule 3); return it. None stands for an entry that nothing calls for."""
        if new is None:
            return None
        self.read()
        with self.database.transaction():
            entry = self.ledger.append(*new)
            self._take(entry)
        return entry

    def append_all(self, makers: Iterable[Callable[[], NewEntry | None]]) -> None:
        """Write entries in one transaction, each made from the state after those before it."""
        with self.database.transaction():
            for make in makers:
                self.append(make())

    def price_of(self, node: str) -> PricedNode | None:
        """Return the place of a node in the open epoch, also in its run-off; None: it is not paid. `node`: peer id."""
        return self._of_open().priced.get(node)

    def kind(self, node: str) -> Kind:
        """Return what is known of a node, for `Presence`. `node`: peer id."""
        state = self.state
        if node in state.tranches or node in state.measurements:
            return Kind.WORKER
        if any(one.accepted for one in state.records.get(node, ())):
            return Kind.WORKER
        return Kind.NEWCOMER if node in state.asks or node in state.sealed else Kind.STRANGER

    def is_active(self, node: str) -> bool:
        """Tell whether a node is active in the open epoch."""
        return node in self._of_open().active

    def standing_by(self, node: str) -> StandbyNode | None:
        """Return a node's place on standby in the open epoch; None: it has none."""
        return self._of_open().standby.get(node)

    def _of_open(self) -> _Places:
        open_ = self.state.open
        if open_ is None:
            return _NO_PLACES
        if self._places.epoch != open_.terms.epoch:
            plan = open_.plan
            active = {one.node.decode(): one for one in plan.market.nodes}
            priced = active | {one.node.node.decode(): one.node for one in plan.run_offs}
            standby = {one.node.decode(): one for one in plan.market.activation.standby}
            self._places = _Places(open_.terms.epoch, frozenset(active), priced, standby)
        return self._places

    def snapshot(self, at: int) -> Iterator[bool]:
        """Return the steps that store a snapshot of the present state where one is due. Call after an epoch closed."""
        return self.snapshots.storing(self.state, self._last, at)
