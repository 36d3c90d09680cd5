"""Places that one caller uses at a time: any that is free, or one in particular. First come, first served, as far as
the place that each wants is free. Some places may be set apart: of the free ones, a caller that wants any gets another
first."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

P = TypeVar("P")


class Places(Generic[P]):
    """The places. Use from the event loop's thread."""

    def __init__(self, places: Sequence[P], apart: Sequence[P] = ()) -> None:
        """`apart`: those that are set apart."""
        self._free, self._apart = list(places), list(apart)
        self._waiting: deque[tuple[P | None, asyncio.Future[P]]] = deque()

    def has(self, place: P) -> bool:
        """Tell whether a place is free."""
        return place in self._free

    async def take(self, wanted: P | None = None) -> P:
        """Wait for a place and take it. `wanted`: this one; None: any, the one given back last first, those that are
        set apart last."""
        if self._free and (wanted is None or wanted in self._free):
            place = self._any() if wanted is None else wanted
            self._free.remove(place)
            return place
        ticket: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, ticket))
        try:
            return await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                self.give(ticket.result())
            raise

    def _any(self) -> P:
        return next((place for place in reversed(self._free) if place not in self._apart), self._free[-1])

    def give(self, place: P) -> None:
        """Give a place back: to the first who waits for it, or for any."""
        self._waiting = deque(one for one in self._waiting if not one[1].done())
        for one in self._waiting:
            if one[0] is None or one[0] is place:
                self._waiting.remove(one)
                one[1].set_result(place)
                return
        self._free.append(place)
