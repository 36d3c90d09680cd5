"""The order in which a child begins its calls, of which some are answered later. Pure.

Rules
1. Calls begin in the order of their arrival. An ordinary call is answered before the next one begins.
2. A *deferred* call is begun, and answered later by a step of the work that it joined. Calls that arrive meanwhile
   begin between two steps.
3. A *barrier* changes what deferred calls read. It begins once every deferred call begun before it has been answered,
   and no call that arrived after it begins before it.
4. A call that is taken back before it began never begins. One that has begun ends without an answer.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import msgspec


class WaitingCall(NamedTuple):
    """A call that has arrived. `id`: id of its answer."""

    id: int
    method: str
    body: msgspec.Raw


class CallOrder:
    """`deferred`, `barriers`: names of methods."""

    def __init__(self, deferred: Collection[str] = (), barriers: Collection[str] = ()) -> None:
        self._deferred, self._barriers = frozenset(deferred), frozenset(barriers)
        self._waiting: deque[WaitingCall] = deque()
        self._begun: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether deferred calls have begun that were not answered."""
        return bool(self._begun)

    @property
    def begun(self) -> frozenset[int]:
        """The deferred calls that have begun and were not answered."""
        return frozenset(self._begun)

    def put(self, call: WaitingCall) -> None:
        """Add a call that has arrived."""
        self._waiting.append(call)

    def take(self) -> WaitingCall | None:
        """Return the next call to begin, None for none yet."""
        if not self._waiting or (self.busy and self._waiting[0].method in self._barriers):
            return None
        call = self._waiting.popleft()
        if self.defers(call):
            self._begun.add(call.id)
        return call

    def defers(self, call: WaitingCall) -> bool:
        """Tell whether `call` is answered later."""
        return call.method in self._deferred

    def on_answer(self, id: int) -> None:
        """Note that a deferred call was answered."""
        self._begun.discard(id)

    def take_back(self, id: int) -> bool:
        """Take a call back (rule 4); return whether it had begun."""
        if id in self._begun:
            self._begun.remove(id)
            return True
        self._waiting = deque(call for call in self._waiting if call.id != id)
        return False
