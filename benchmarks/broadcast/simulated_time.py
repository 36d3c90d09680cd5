"""Positions of simulated peers, and the queue of simulated events."""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

NEAREST, ACROSS = 0.005, 0.06
"""Seconds one way: of the nearest peer, and in addition of one at a distance of the disk's radius."""


class Place(NamedTuple):
    """A peer's position and its real link, in bytes per second. `believed`: its uplink as the planner knows it."""

    up: float
    down: float
    believed: float
    x: float
    y: float

    def distance(self, other: "Place") -> float:
        """Return the seconds one way."""
        return NEAREST + ACROSS * math.hypot(self.x - other.x, self.y - other.y)


class Clock:
    """The event queue. `steps`: events so far."""

    def __init__(self) -> None:
        self.now, self.steps = 0.0, 0
        self._number = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, seconds: float, do: Callable[..., None], *what: Any) -> None:
        self._number += 1
        heappush(self._events, (self.now + seconds, self._number, do, what))

    def run(self, until: Callable[[], bool], most: float) -> None:
        """Run until the condition holds, or simulated time is over."""
        while self._events and not until() and self.now < most:
            self.now, _, do, what = heappop(self._events)
            self.steps += 1
            do(*what)
