"""A node of a simulated run, the leases and groups that it works on, and what its coordinator recorded of it."""

import statistics
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from benchmarks.plays.simulated_prompts import LeasedPrompt
from echo2.coordinator.leases.delivery_record import (
    MOST_SEARCHED_LEASES,
    DeliveryRecord,
    PastLease,
    delivery_record,
    measured_groups,
)
from echo2.coordinator.leases.open_lease_limit import MOST_OPEN_LEASES
from echo2.coordinator.leases.room_shares import Share
from echo2.engines.process.change_time import ChangeLoss, StepPace, WorkFacts, is_due

MEDIAN_GROUPS: Final = 32
"""As node/rollouts/token_rate.py has it."""
KEPT_LEASES: Final = 2 * MOST_OPEN_LEASES + MOST_SEARCHED_LEASES
"""Ended leases of a node that are kept: those from which its record may be read."""


@dataclass(eq=False)
class SimulatedNode:
    """A node. `loaded`, `newest`: the version that it works under and the newest one that it knows.
    `here_since`: ms. `running`: the leases that it works on. `changes`: whether it begins no group before it has loaded
    the newest version. `refused_under`: the last version under which it was refused for other reasons than its number
    of leases. `took`: seconds of its last groups. As its coordinator sees it: `open_leases` and `undecided` groups, and
    the `ended` leases by number."""

    key: bytes
    turnaround: float
    ask: int = 0
    active: bool = True
    paid_since: float | None = None
    loaded: int = 0
    newest: int = 0
    here: bool = True
    here_since: int = 0
    waits: bool = False
    running: set[int] = field(default_factory=set)
    changes: bool = False
    refused_under: int = -1
    took: deque[float] = field(default_factory=lambda: deque(maxlen=MEDIAN_GROUPS))
    pace: StepPace = field(default_factory=StepPace)
    change_cost: ChangeLoss = field(default_factory=ChangeLoss)
    open_leases: int = 0
    undecided: int = 0
    ended: dict[int, PastLease] = field(default_factory=dict)
    _numbers: list[int] = field(default_factory=list)
    """Of the ended leases, in order."""
    _record: tuple[int, DeliveryRecord] | None = None
    """The groups that were measured, and the record of them; None: leases have ended since."""

    def is_due(self, staleness: int, now: int) -> bool:
        """Tell whether the node changes to the newest version now. `now`: ms."""
        step, behind = self.pace.seconds(), self.pace.behind(self.loaded, now)
        if step is None or behind is None:
            return True
        group = statistics.median(self.took) if self.took else None
        work = WorkFacts(
            bool(self.running), self.refused_under != self.loaded, group, group or 0.0, self.change_cost.seconds()
        )
        return is_due(behind, step, staleness, work)

    def end(self, lease: int, row: PastLease) -> None:
        """Note that a lease ended, or that its group came after it had."""
        if lease not in self.ended:
            insort(self._numbers, lease)
        self.ended[lease], self._record = row, None
        for number in self._numbers[:-KEPT_LEASES]:
            del self.ended[number]
        del self._numbers[:-KEPT_LEASES]

    def record(self) -> DeliveryRecord:
        """Return the node's delivery record. Leases are numbered in the order in which they were sent."""
        groups = measured_groups(self.open_leases)
        if self._record is None or self._record[0] != groups:
            newest = reversed(self._numbers[-groups - MOST_SEARCHED_LEASES :])
            self._record = groups, delivery_record([self.ended[number] for number in newest], groups)
        return self._record[1]


class OpenLease(NamedTuple):
    """A lease that has not ended. `sent`, `expires`: ms. `share`: of the room. `ahead`: groups on their way when it was
    given, itself included. `late`: from when on it is late (lease_lifetime.py, rule 5), ms; None: never."""

    node: SimulatedNode
    version: int
    sent: int
    expires: int
    share: Share
    prompt: LeasedPrompt
    ahead: int
    late: int | None


class GroupWork(NamedTuple):
    """The work on a lease's group. `began`: seconds. `takes`: seconds."""

    began: float
    takes: float
    prompt: LeasedPrompt

    def share_at(self, seconds: float) -> float:
        """Return the share of the group's tokens that are there, so many seconds after `began`."""
        return min(1.0, seconds / self.takes)
