"""When a refused node asks for a lease again. Pure; times in milliseconds.

Rules
1. All nodes that wait ask together at most about `RATE` times a second: the n-th that waits is told to come back after
   n / RATE seconds. So whatever a version leaves over is found soon, and a crowd costs no more than a few nodes.
2. A node waits at least `LEAST`, and at least a half of the time for which no lease was given, that up to `LONGEST`.
   Where work comes and goes every few seconds a node finds it at once, and no node asks every second for a night.
3. A node that asks early, because a new Head woke it, counts once.
"""

import heapq
from typing import Final

RATE: Final = 5
LEAST: Final = 1_000
GRACE: Final = 10_000
"""By so much a node may come later than it was told, and is still one that waits: it spreads its asks itself."""
LONGEST: Final = 10_000
"""Of rule 2. The wait by rule 1 may be longer."""


class Retries:
    """Which nodes wait, each by its public key, and until when."""

    def __init__(self) -> None:
        self._due: dict[bytes, int] = {}
        self._queue: list[tuple[int, bytes]] = []
        self._given: int | None = None

    def given(self, node: bytes, now: int) -> None:
        """A node was given a lease."""
        self._due.pop(node, None)
        self._given = now

    def after(self, node: bytes, now: int, least: int = LEAST) -> int:
        """How long a node waits that is refused now. `least`: by the kind of its refusal."""
        if self._given is None or self._given > now:
            self._given = now
        self._due.pop(node, None)
        self._forget(now)
        wait = max(least, min((now - self._given) // 2, LONGEST), 1000 * (len(self._due) + 1) // RATE)
        self._due[node] = now + wait
        heapq.heappush(self._queue, (now + wait, node))
        return wait

    def _forget(self, now: int) -> None:
        """Leave out what is over, and what was told to a node before it was told something else."""
        while self._queue:
            due, node = self._queue[0]
            told_since = self._due.get(node) != due
            if not told_since and due + GRACE >= now:
                return
            heapq.heappop(self._queue)
            if not told_since:
                del self._due[node]
