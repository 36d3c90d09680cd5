"""When a refused node asks for a lease again. Pure; times in milliseconds.

Rules
1. The nodes of one party that wait ask together at most about `RATE` times a second, and so do all parties that wait
   with one node each: the n-th is told to come back after n / RATE seconds, n = other parties that wait + nodes of its
   own party that do. So whatever a version leaves over is found soon, a crowd costs no more than a few nodes, and a
   crowd of one party does not make the wait of another longer. None of these waits is longer than `FARTHEST`: fresh
   keys that ask once, faster than `RATE`, would else make the line longer for ever.
2. A node waits at least `LEAST`, and at least a half of the time for which no lease was given, that up to `LONGEST`.
   Where work comes and goes every few seconds a node finds it at once, and no node asks every second for a night.
3. A node that asks early, because a new Head woke it, counts once.
"""

import heapq
from collections import Counter
from typing import Final

RATE: Final = 5
LEAST: Final = 1_000
GRACE: Final = 10_000
"""By so much a node may come later than it was told, and is still one that waits: it spreads its asks itself."""
LONGEST: Final = 10_000
"""Of rule 2. The wait by rule 1 may be longer."""
FARTHEST: Final = 600_000


class RetryTimes:
    """Which nodes wait, each by its public key, of which party, and until when."""

    def __init__(self) -> None:
        self._due: dict[bytes, tuple[int, str]] = {}
        self._parties: Counter[str] = Counter()
        self._queue: list[tuple[int, bytes]] = []
        self._given: int | None = None

    def given(self, node: bytes, now: int) -> None:
        """A node was given a lease."""
        self._drop(node)
        self._given = now

    def after(self, node: bytes, now: int, least: int = LEAST, party: str = "") -> int:
        """How long a node waits that is refused now. `least`: by the kind of its refusal."""
        if self._given is None or self._given > now:
            self._given = now
        self._drop(node)
        self._forget(now)
        others = len(self._parties) - (party in self._parties)
        place = others + self._parties.get(party, 0) + 1
        wait = max(least, min((now - self._given) // 2, LONGEST), min(1000 * place // RATE, FARTHEST))
        self._due[node] = now + wait, party
        self._parties[party] += 1
        heapq.heappush(self._queue, (now + wait, node))
        return wait

    def _forget(self, now: int) -> None:
        """Leave out what is over, and what was told to a node before it was told something else."""
        while self._queue:
            due, node = self._queue[0]
            told_since = node not in self._due or self._due[node][0] != due
            if not told_since and due + GRACE >= now:
                return
            heapq.heappop(self._queue)
            if not told_since:
                self._drop(node)

    def _drop(self, node: bytes) -> None:
        told = self._due.pop(node, None)
        if told is None:
            return
        self._parties[told[1]] -= 1
        if not self._parties[told[1]]:
            del self._parties[told[1]]
