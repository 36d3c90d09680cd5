"""Simulated time: a queue of events, which is done in the order of their moments."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class SimulatedClock:
    """Simulated time, with the queue of events. `now`: seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._number = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, seconds: float, do: Callable[..., None], *what: Any) -> None:
        """Schedule the call `do(*what)`."""
        self._number += 1
        heappush(self._events, (self.now + seconds, self._number, do, what))

    def run(self, until: Callable[[], bool], most: float) -> None:
        """Run events until the condition holds, none is left, or the next one is beyond `most` seconds."""
        while self._events and not until() and self._events[0][0] <= most:
            self.now, _, do, what = heappop(self._events)
            do(*what)
