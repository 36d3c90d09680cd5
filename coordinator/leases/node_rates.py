"""The measured rates of nodes that request leases, and their sum. Pure; times in milliseconds."""

from collections import OrderedDict
from typing import Final

RATE_KEPT_MS: Final = 600_000
"""Time that a node counts after its last request."""


class NodeRates:
    """The rate of each node. The cost of a call does not depend on the number of nodes."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._known)

    def note(self, node: bytes, rate: float, now: int) -> None:
        """Note that a node has requested a lease. `rate`: groups per millisecond that it was measured to deliver."""
        self._total += rate - self._known.pop(node, (0.0, 0))[0]
        self._known[node] = rate, now
        while (oldest := next(iter(self._known.items())))[1][1] + RATE_KEPT_MS < now:
            self._total -= self._known.pop(oldest[0])[0]
        if len(self._known) == 1:  # drops accumulated rounding errors
            self._total = rate

    def part(self, node: bytes) -> float:
        """Return a node's share of the sum of all known rates; 1 while none is measured."""
        if self._total <= 0:
            return 1.0
        return min(1.0, self._known.get(node, (0.0, 0))[0] / self._total)
