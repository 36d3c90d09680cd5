"""The space and the time of a simulated broadcast: positions of peers, and the queue of events."""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

NEAREST, ACROSS = 0.005, 0.06
"""Latency one way in seconds: to a peer at the same place, and in addition per distance of the disk's radius."""


class Place(NamedTuple):
    """A peer's position on a disk of radius 1, and its link in bytes per second. `believed`: its uplink as the planner
    knows it."""

    up: float
    down: float
    believed: float
    x: float
    y: float

    def distance(self, other: "Place") -> float:
        """Return the latency to a peer at `other`, in seconds one way."""
        return NEAREST + ACROSS * math.hypot(self.x - other.x, self.y - other.y)


class Clock:
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
        """Run events until the condition holds, none is left, or `most` seconds have passed."""
        while self._events and not until() and self.now < most:
            self.now, _, do, what = heappop(self._events)
            do(*what)
