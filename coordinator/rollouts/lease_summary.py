"""A summary of the open leases and of the nodes that are here, by class of turnaround. Pure; times in milliseconds.

coordinator/rollouts/pacing.py decides from it, so that the cost of a request does not grow with the number of nodes.

Rules
1. A class holds the turnarounds around `LEAST` x 2^(class / `PER_OCTAVE`). There are `CLASSES`: 64 ms to one hour.
2. A lease counts under its version, the class of its node when it was sent, and a slot of its sending time. A slot is
   an `AGES_PER_TURNAROUND`-th of the class's turnaround long. `AGES` slots are kept apart: beyond them, after four
   turnarounds, a lease counts as open and is no longer expected.
3. A node that works on c leases at once, each in turnaround d, counts as c servers of its class, and c / d is its
   supply. It counts until the time that its last event states: a lease that it can be expected to return, or its next
   request.
4. All sums are integers, so they do not depend on the order of events, and a summary derived anew from the store equals
   the one that events kept up.
5. Leases of versions that are too old to be learned from are left out of the sums, as `room` leaves them out.
"""

import heapq
import math
from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

CLASSES: Final = 64
PER_OCTAVE: Final = 4
LEAST: Final = 64
AGES_PER_TURNAROUND: Final = 8
AGES: Final = 4 * AGES_PER_TURNAROUND
SUPPLY: Final = 10**9
"""Units of supply per server and millisecond: supplies are sums of integers."""
SERVER: Final = 1_000
"""Units of a server: c is measured, and no whole number."""

Integers = NDArray[np.int64]
_TURNAROUNDS = LEAST * 2.0 ** (np.arange(CLASSES) / PER_OCTAVE)
_SLOT_MS: list[int] = [max(1, round(ms / AGES_PER_TURNAROUND)) for ms in _TURNAROUNDS]
_SLOTS = np.array(_SLOT_MS, np.float64)


class LeaseCell(NamedTuple):
    """The place of a lease in the summary (rule 2). `slot`: number of the slot since time 0."""

    version: int
    turnaround_class: int
    slot: int


class PresentNode(NamedTuple):
    """A node that counts until `until` (rule 3). `servers`: in units of 1 / `SERVER`."""

    turnaround_class: int
    servers: int
    supply: int
    until: int


def turnaround_class(ms: float) -> int:
    """Return the class of a turnaround (rule 1)."""
    return min(CLASSES - 1, max(0, round(PER_OCTAVE * math.log2(max(ms, 1.0) / LEAST))))


def lease_cell(version: int, turnaround: float, sent: int) -> LeaseCell:
    """Return the place of a lease that was sent at `sent` to a node of this turnaround."""
    known = turnaround_class(turnaround)
    return LeaseCell(version, known, sent // _SLOT_MS[known])


class LeaseSummary:
    """The summary. `oldest`: the oldest version that is fresh."""

    def __init__(self, oldest: int = 0) -> None:
        self.oldest = oldest
        self.cells: Counter[LeaseCell] = Counter()
        """Open leases by place, those of versions that are too old too. No count is 0."""
        self.nodes: dict[bytes, PresentNode] = {}
        self._ends: list[tuple[int, bytes]] = []
        self._open: Integers = np.zeros(CLASSES, np.int64)
        self._servers: Integers = np.zeros(CLASSES, np.int64)
        self._supply: Integers = np.zeros(CLASSES, np.int64)
        self._counts: Integers = np.zeros((CLASSES, AGES), np.int64)
        """A ring per class: slot n stands at n mod `AGES`, whose number is in `_slots`."""
        self._slots: Integers = np.zeros((CLASSES, AGES), np.int64)
        self._table: LeaseClasses | None = None

    def lease_given(self, cell: LeaseCell) -> None:
        """Count a lease."""
        self._move(cell, 1)

    def lease_ended(self, cell: LeaseCell) -> None:
        """Count a lease no longer: its group came, or its time has passed. Raises `KeyError` if none is there."""
        if cell not in self.cells:
            raise KeyError(cell)
        self._move(cell, -1)

    def set_oldest(self, oldest: int) -> None:
        """Set the oldest version that is fresh, at a step or in a new era. Costs a search through the cells."""
        before, self.oldest = self.oldest, oldest
        for cell, count in self.cells.items():
            was, counts = cell.version >= before, cell.version >= oldest
            if was != counts:
                self._count(cell, count if counts else -count)

    def node_here(self, node: bytes, turnaround: float, servers: float, until: int) -> None:
        """Count a node, in place of what was known of it. `servers`: leases that it works on at once."""
        known = turnaround_class(turnaround)
        present = PresentNode(known, round(servers * SERVER), round(servers * SUPPLY / max(turnaround, 1.0)), until)
        before = self.nodes.get(node)
        if before is None or before[:3] != present[:3]:
            self._leave(node)
            self._add(present, 1)
        self.nodes[node] = present
        heapq.heappush(self._ends, (until, node))
        if len(self._ends) > 4 * len(self.nodes) + CLASSES:  # most are of earlier events
            self._ends = [(one.until, key) for key, one in self.nodes.items()]
            heapq.heapify(self._ends)

    def forget(self, now: int) -> None:
        """Drop the nodes whose time has passed (rule 3)."""
        while self._ends and self._ends[0][0] < now:
            until, node = heapq.heappop(self._ends)
            if (present := self.nodes.get(node)) is not None and present.until == until:
                self._leave(node)

    @property
    def running(self) -> int:
        """The open leases of fresh versions."""
        return int(self._open.sum())

    @property
    def supply(self) -> float:
        """Groups per millisecond that the nodes here deliver."""
        return float(self._supply.sum()) / SUPPLY

    @property
    def turnaround(self) -> float | None:
        """The mean turnaround of the servers here, ms; None if no node is here."""
        return float(self._servers.sum()) / SERVER / self.supply if self.supply > 0 else None

    @property
    def at_once(self) -> float:
        """Leases that a node here works on at once, in the mean; 1 if no node is here."""
        return float(self._servers.sum()) / SERVER / len(self.nodes) if self.nodes else 1.0

    def overdue(self, now: int, turnarounds: float) -> int:
        """Count the open leases that are older than so many turnarounds of their class."""
        classes = self.table()
        late = now - classes.sent > turnarounds * classes.turnaround[classes.rows]
        return int(classes.running[late].sum())

    def table(self) -> "LeaseClasses":
        """Return the sums by class, for the classes in use and those between them."""
        if self._table is None:
            self._table = self._tabled()
        return self._table

    def _tabled(self) -> "LeaseClasses":
        used = np.flatnonzero(self._servers + self._open)
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        servers, supply = self._servers[first:last] / SERVER, self._supply[first:last]
        turnarounds = _TURNAROUNDS[first:last].copy()
        np.divide(servers * SUPPLY, supply, out=turnarounds, where=supply > 0)
        rows, places = np.nonzero(self._counts[first:last])
        sent = (self._slots[first + rows, places] + 0.5) * _SLOTS[first + rows]
        running = self._counts[first + rows, places].astype(np.float64)
        return LeaseClasses(turnarounds, servers, rows, sent, running)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LeaseSummary):
            return NotImplemented
        return (self.oldest, self.cells, self.nodes) == (other.oldest, other.cells, other.nodes)

    __hash__ = None  # type: ignore[assignment]

    def _move(self, cell: LeaseCell, by: int) -> None:
        self.cells[cell] += by
        if not self.cells[cell]:
            del self.cells[cell]
        if cell.version >= self.oldest:
            self._count(cell, by)

    def _count(self, cell: LeaseCell, by: int) -> None:
        self._table = None
        row, slot = cell.turnaround_class, cell.slot
        self._open[row] += by
        place = slot % AGES
        if by > 0 and self._slots[row, place] < slot:
            self._slots[row, place], self._counts[row, place] = slot, 0
        if self._slots[row, place] == slot:
            self._counts[row, place] += by

    def _add(self, node: PresentNode, sign: int) -> None:
        self._table = None
        self._servers[node.turnaround_class] += sign * node.servers
        self._supply[node.turnaround_class] += sign * node.supply

    def _leave(self, node: bytes) -> None:
        if (present := self.nodes.pop(node, None)) is not None:
            self._add(present, -1)


class LeaseClasses(NamedTuple):
    """The sums of a summary over n classes and the m slots in use. `turnaround`: mean of the class's servers, ms, [n].
    `servers`: [n]. `rows`: class of each slot, [m]. `sent`: middle of the slot, ms, [m]. `running`: open leases sent in
    it, [m]."""

    turnaround: NDArray[np.float64]
    servers: NDArray[np.float64]
    rows: NDArray[np.intp]
    sent: NDArray[np.float64]
    running: NDArray[np.float64]
