"""Places that one caller uses at a time: any that is free, or one in particular. Pure but for the wait.

Rules
1. First come, first served, as far as the place that each wants is free.
2. Callers that nobody waits for (`aside`) and all others have the places alternately while both wait. So a large
   evaluation delays the turns of nodes by as much time again at most, and is not starved by them.
3. Of several free places a caller that takes any gets one that is not set apart, if there is one; of those the one with
   the least `load`, of equals the one given back last.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P")


class _Waiting(NamedTuple, Generic[P]):
    """A caller that waits. `wanted`: the place; None: any."""

    wanted: P | None
    ticket: asyncio.Future[P]


class Places(Generic[P]):
    """The places. Use from the event loop's thread."""

    def __init__(
        self, places: Sequence[P], apart: Sequence[P] = (), *, load: Callable[[P], int] = lambda place: 0
    ) -> None:
        """`apart`: those that are set apart; `load`: see rule 3."""
        self._free, self._apart, self._load = list(places), list(apart), load
        self._waiting: dict[bool, deque[_Waiting[P]]] = {False: deque(), True: deque()}
        """By whether they are aside."""
        self._next = False
        """Whether a caller aside goes first (rule 2)."""

    def has(self, place: P) -> bool:
        """Tell whether a place is free."""
        return place in self._free

    async def take(self, wanted: P | None = None, *, aside: bool = False) -> P:
        """Wait for a place and take it. `wanted`: this one; None: any. `aside`: see rule 2."""
        if self._free and (wanted is None or wanted in self._free):
            place = self._any() if wanted is None else wanted
            self._free.remove(place)
            return place
        ticket: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        self._waiting[aside].append(_Waiting(wanted, ticket))
        try:
            return await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                self.give(ticket.result())
            raise

    def _any(self) -> P:
        common = [place for place in self._free if place not in self._apart]
        return min(reversed(common or self._free), key=self._load)

    def give(self, place: P) -> None:
        """Give a place back: to the first who waits for it, or for any (rules 1 and 2)."""
        for aside in (self._next, not self._next):
            waiting = self._waiting[aside] = deque(one for one in self._waiting[aside] if not one.ticket.done())
            for one in waiting:
                if one.wanted is None or one.wanted is place:
                    waiting.remove(one)
                    one.ticket.set_result(place)
                    self._next = not aside
                    return
        self._free.append(place)
