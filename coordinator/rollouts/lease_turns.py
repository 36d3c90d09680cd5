"""Give patient nodes a lease in their turn, though the law of leases gives none. Pure; times in milliseconds.

The law (coordinator/rollouts/pacing.py) says how many groups lack, and the first node that asks gets each of them. So a
node that always asks a moment later would wait for ever while others can fill the batches.

Rules
1. A node waits from its first refusal as `later` on, until it gets a lease or is T late to come back. After `PATIENCE`
   T it is *patient*: its next refusal as `later` queues it round robin by subnet, connection and key (round_robin.py).
2. A refusal counts only if the node could serve some draw: a node too slow for all of them never waits.
3. A patient node whose turn it is gets a lease though nothing lacks. Its group counts from then on, so the law gives
   one less to the others. No place is kept for a node that is not there, so none makes the learner or others wait.
4. At most every second lease is given so: a lease of any other node, while patient ones wait, gives their queue one,
   and a lease of a patient node takes it. So groups are hardly older, and many patient keys of one owner take no more.
5. New keys queue apart. A lease of a known key gives their queue `leases.newcomers` of a lease, and each lease of a new
   key takes one. Nothing is given so while new keys have their share of the room (room_shares.py): keys are free.
6. The state is in memory, of nodes that were refused lately. A request costs a look at `MOST` patient nodes at most.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple

from echo2.coordinator.rollouts.round_robin import RoundRobin

PATIENCE: Final = 4.0
MOST: Final = 32
"""Most leases that a queue may have before it at once."""
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
    """A node that waits (rule 1). `patient`: from when on it is patient. `until`: when its wait is over if it does not
    come back. `step`: T."""

    asking: AskingNode
    step: float
    patient: float
    until: float


@dataclass
class _Queue:
    """The patient nodes of known or of new keys. `leases`: that may be given to them now (rules 4 and 5)."""

    waiting: RoundRobin
    gain: float
    cost: float
    leases: float = 0.0

    def most(self) -> int:
        return int(self.leases + _EXACT)

    def earn(self, now: int) -> None:
        if self.waiting.anyone(now):
            self.leases = min(float(MOST), self.leases + self.gain)

    def spend(self) -> None:
        self.leases = max(0.0, self.leases - self.cost)


class LeaseTurns:
    """The nodes that the law refused, and their turns."""

    def __init__(self, newcomers: float = 0.1) -> None:
        """`newcomers`: share of the leases that patient new keys get, below 1 (rule 5)."""
        self._newcomers, self._latest = newcomers, 0
        self._clear(0)

    def __len__(self) -> int:
        """Count the nodes in memory."""
        return len(self._waits)

    def may_have(self, asking: AskingNode, lacking: float, room_for_new: Callable[[], bool], now: int) -> bool:
        """Tell whether a node gets a lease. `lacking`: of `pacing.lack`. `room_for_new`: whether new keys have less
        than their share of the room (rule 5)."""
        if now < self._latest - SET_BACK:
            self._clear(now)
        self._latest = max(self._latest, now)
        if lacking > 0:
            return True
        queue = self._queue(asking.new)
        most = queue.most()
        if lacking == float("-inf") or not most or not self._is_patient(asking, now):
            return False
        return (not asking.new or room_for_new()) and queue.waiting.is_next(asking.path, most, now)

    def refused(self, asking: AskingNode, lacking: float, step: float, now: int) -> None:
        """Note that a node is refused as `later`. `lacking`: of `pacing.lack`. `step`: T."""
        if lacking == float("-inf"):
            return
        known = self._wait_of(asking, now)
        patient = now + PATIENCE * step if known is None else known.patient
        self._leave_old_place(asking)
        self._waits[asking.path[-1]] = _Wait(asking, step, patient, now + step)
        self._waits.move_to_end(asking.path[-1])
        self._forget(now)

    def waits(self, asking: AskingNode, until: int, now: int, *, later: bool) -> None:
        """Note that a refused node comes back by `until`. `later`: whether the law refused it; of another refusal the
        node leaves the queue, and goes on waiting."""
        known = self._wait_of(asking, now)
        if known is None:
            return
        self._leave_old_place(asking)
        self._waits[asking.path[-1]] = known._replace(asking=asking, until=until + known.step)
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
        else:
            self._new.earn(now)
        if patient and not asking.new:
            self._known.spend()
        else:
            self._known.earn(now)

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
