"""The space of a simulated broadcast: positions of peers, and the latency between them."""

import math
from typing import NamedTuple

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
