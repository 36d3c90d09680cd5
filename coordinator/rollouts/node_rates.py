"""Measured rates of the nodes that ask, and what they add up to. Pure; times in milliseconds."""

from collections import OrderedDict
from typing import Final

KEPT: Final = 600_000
"""For so long after its last ask a node counts."""


class NodeRates:
    """A note and a look cost the same however many nodes there are."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        self._total = 0.0

    def note(self, node: bytes, rate: float, now: int) -> None:
        """A node asks, and was measured to deliver `rate`."""
        self._total += rate - self._known.pop(node, (0.0, 0))[0]
        self._known[node] = rate, now
        while (oldest := next(iter(self._known.items())))[1][1] + KEPT < now:
            self._total -= self._known.pop(oldest[0])[0]
        if len(self._known) == 1:  # no rounding error lives on
            self._total = rate

    def part(self, node: bytes) -> float:
        """Return the share of a node in all that the known ones deliver; 1 while nothing is measured."""
        if self._total <= 0:
            return 1.0
        return min(1.0, self._known.get(node, (0.0, 0))[0] / self._total)
