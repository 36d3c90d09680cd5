"""Give patient nodes their turn at the leases that the law of leases gives. Pure; times in milliseconds.

The law (coordinator/rollouts/pacing.py) says how many groups lack. Without turns the first node that asks would get
each of them, so a node that always asks a moment later would wait for ever while others can fill the batches.

Rules
1. A node waits from its first refusal as `later` on, until it gets a lease or is T late to come back. After `PATIENCE`
   T it is *patient*: its next refusal as `later` queues it round robin by subnet, connection and key (round_robin.py).
2. A refusal counts only if the node can serve some draw: a node too slow for all of them never waits.
3. Of the groups that a draw lacks, one is kept for each patient node ahead of the node that asks, if it can still serve
   that draw when it comes back. Nothing is kept for a node that does not come back in time, or was refused otherwise.
4. At most every second lease is kept: a lease given to any other node while patient ones wait gives their queue one
   place, and a lease given to a patient node takes it. So many patient keys of one owner leave half to the others.
5. New keys queue apart, behind known keys, and nothing is kept for them from a patient known node. A lease of a known
   key gives their queue `leases.newcomers` of a lease, and each lease of a new key takes one. So free keys, however
   many, keep no more than that share from known nodes, and only while room has a place for a new key (room_shares.py).
6. A lease that is given whatever lacks, as to a learner that waits, is given to any node that asks.
7. A request costs a look at `AHEAD` patient nodes at most. The state is in memory, of nodes that were refused lately.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

from coordinator.rollouts.pacing import ReturningNode, Shortage
from coordinator.rollouts.round_robin import RoundRobin

PATIENCE: Final = 4.0
AHEAD: Final = 32
"""Patient nodes looked at, and most leases that a queue may keep at once."""
SET_BACK: Final = 10_000
"""Milliseconds by which the clock is set back when all turns begin anew."""
FORGOTTEN: Final = 2
_EXACT: Final = 1e-6
"""Sums of shares are rounded by so much before they count as whole leases."""


class AskingNode(NamedTuple):
    """The node that asks for a lease. `path`: its subnet, connection and key. `new`: whether its key is new."""

    path: tuple[Hashable, ...]
    new: bool


class _Wait(NamedTuple):
    """A node that waits (rule 1). `patient`: from when on it is patient. `due`: when it comes back. `until`: when its
    wait is over if it does not. `step`: T."""

    asking: AskingNode
    turnaround: float
    step: float
    patient: float
    due: int
    until: float


@dataclass
class _Queue:
    """The patient nodes of known or of new keys. `places`: leases that may be kept for them now (rules 4 and 5)."""

    waiting: RoundRobin
    gain: float
    cost: float
    places: float = 0.0

    def most(self) -> int:
        return int(self.places + _EXACT)

    def earn(self) -> None:
        self.places = min(float(AHEAD), self.places + self.gain)

    def spend(self) -> None:
        self.places = max(0.0, self.places - self.cost)


class LeaseTurns:
    """The nodes that the law refused, and their turns."""

    def __init__(self, newcomers: float = 0.1) -> None:
        """`newcomers`: share of the leases kept for new keys, below 1 (rule 5)."""
        self._newcomers = newcomers
        self._clear(0)

    def __len__(self) -> int:
        """Count the nodes in memory."""
        return len(self._waits)

    def leaves(self, asking: AskingNode, shortage: Shortage, room_for_new: Callable[[], bool], now: int) -> bool:
        """Tell whether a node gets one of the groups that lack. `room_for_new`: whether new keys have less than their
        share of the room (rule 5)."""
        if now < self._latest - SET_BACK:  # the clock was set back
            self._clear(now)
        self._latest = max(self._latest, now)
        if shortage.groups <= 0:
            return False
        left = self._kept(self._known, asking, shortage, now)
        patient = not asking.new and self._is_patient(asking, now)
        if not patient and self._new.most() and self._new.waiting.anyone(now) and room_for_new():
            left = self._kept(self._new, asking, left, now)
        return left.groups > 0

    def refused(self, asking: AskingNode, shortage: Shortage, turnaround: float, step: float, now: int) -> None:
        """Note that a node is refused as `later`. `turnaround`: that the law took for it. `step`: T."""
        if not shortage.serves:
            return
        known = self._wait_of(asking, now)
        patient = now + PATIENCE * step if known is None else known.patient
        self._leave_old_place(asking)
        self._waits[asking.path[-1]] = _Wait(asking, turnaround, step, patient, now, now + step)
        self._waits.move_to_end(asking.path[-1])
        self._forget(now)

    def waits(self, asking: AskingNode, due: int, until: int, now: int, *, later: bool) -> None:
        """Note when a refused node comes back: at `due`, by `until`. `later`: whether the law refused it."""
        known = self._wait_of(asking, now)
        if known is None:
            return
        self._leave_old_place(asking)
        self._waits[asking.path[-1]] = known._replace(asking=asking, due=due, until=until + known.step)
        queue = self._queue(asking.new).waiting
        if not later:
            queue.served(asking.path)
        elif now >= known.patient:
            queue.wait(asking.path, until, now)

    def given(self, asking: AskingNode, now: int) -> None:
        """Note that a node was given a lease."""
        patient = self._is_patient(asking, now)
        self._drop(asking.path[-1])
        if asking.new:
            self._new.spend()
        elif self._new.waiting.anyone(now):
            self._new.earn()
        if patient and not asking.new:
            self._known.spend()
        elif self._known.waiting.anyone(now):
            self._known.earn()

    def _kept(self, queue: _Queue, asking: AskingNode, shortage: Shortage, now: int) -> Shortage:
        """Return what lacks beside what is kept for the nodes of a queue that are ahead of this one."""
        most = queue.most()
        if not most or not queue.waiting.anyone(now):
            return shortage
        nodes = (path[-1] for path in queue.waiting.first(AHEAD, now))
        waits = (self._waits.get(node) for node in takewhile(lambda node: node != asking.path[-1], nodes))
        ahead = [ReturningNode(one.turnaround, one.due) for one in waits if one is not None]
        return shortage.kept_for(ahead, most, now)

    def _queue(self, new: bool) -> _Queue:
        return self._new if new else self._known

    def _wait_of(self, asking: AskingNode, now: int) -> _Wait | None:
        """Return what is known of a node that waits; None: it does not."""
        known = self._waits.get(asking.path[-1])
        return known if known is not None and known.until >= now else None

    def _is_patient(self, asking: AskingNode, now: int) -> bool:
        known = self._wait_of(asking, now)
        return known is not None and now >= known.patient

    def _leave_old_place(self, asking: AskingNode) -> None:
        """Let a node wait at its new place if it asks over another connection, or its key is new no longer."""
        known = self._waits.get(asking.path[-1])
        if known is not None and known.asking != asking:
            self._queue(known.asking.new).waiting.served(known.asking.path)

    def _drop(self, node: Hashable) -> None:
        if (known := self._waits.pop(node, None)) is not None:
            self._queue(known.asking.new).waiting.served(known.asking.path)

    def _forget(self, now: int) -> None:
        """Drop up to `FORGOTTEN` nodes that did not come back in time, the longest silent ones first."""
        for _ in range(FORGOTTEN):
            node, known = next(iter(self._waits.items()))
            if known.until >= now:
                return
            self._drop(node)

    def _clear(self, now: int) -> None:
        share = self._newcomers
        self._waits: OrderedDict[Hashable, _Wait] = OrderedDict()
        self._known = _Queue(RoundRobin(), gain=1.0, cost=1.0)
        self._new = _Queue(RoundRobin(), gain=share, cost=1 - share)
        self._latest = now
