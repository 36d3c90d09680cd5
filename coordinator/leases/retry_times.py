"""Choose when a refused node may request a lease again. Pure; times in milliseconds.

Rules
1. The waiting nodes of one party together make about `RETRIES_PER_SECOND` requests per second, and so do all waiting
   parties with one node each. A node is told to retry after n / RATE seconds, where n = other waiting parties + waiting
   nodes of its own party, itself included.
2. So free room is found soon, many waiting nodes cost no more than a few, and the nodes of one party do not delay those
   of another. No wait by rule 1 exceeds `FARTHEST_RETRY_MS`. Otherwise fresh keys that each make one request, faster
   than `RETRIES_PER_SECOND`, would lengthen the waits for ever.
3. A node waits at least `LEAST_RETRY_MS`, and at least half of the time since the last lease was given, the latter up
   to `LONGEST_IDLE_RETRY_MS`. Work that comes every few seconds is found at once, and an idle run is not polled every
   second.
4. A node that retries early, because a new Head arrived, counts once.
"""

import heapq
from collections import Counter
from typing import Final

RETRIES_PER_SECOND: Final = 5
LEAST_RETRY_MS: Final = 1_000 // RETRIES_PER_SECOND
RETRY_GRACE_MS: Final = 10_000
"""Latest retry of a node that still counts as waiting: nodes add jitter of their own."""
LATE_RETRY_FACTOR: Final = 1.25
"""Factor by which a node may exceed its wait, plus a second: nodes add jitter of their own."""
LONGEST_IDLE_RETRY_MS: Final = 10_000
"""Bound of rule 3. The wait by rule 1 may be longer."""
FARTHEST_RETRY_MS: Final = 600_000


def back_by(now: int, wait: int) -> int:
    """Return when a node that was told to wait so long is back at the latest."""
    return now + int(LATE_RETRY_FACTOR * wait) + 1_000


class RetryTimes:
    """The waiting nodes by public key: the party of each, and when it retries."""

    def __init__(self) -> None:
        self._due: dict[bytes, tuple[int, str]] = {}
        self._parties: Counter[str] = Counter()
        self._queue: list[tuple[int, bytes]] = []
        self._given: int | None = None

    def __len__(self) -> int:
        """Count the waits in memory, with those that were replaced by later ones."""
        return max(len(self._due), len(self._queue))

    def on_grant(self, node: bytes, now: int) -> None:
        """Note that a node was given a lease."""
        self._drop(node)
        self._given = now

    def after(self, node: bytes, now: int, least: int = LEAST_RETRY_MS, party: str = "") -> int:
        """Return how long a node that is refused now has to wait. `least`: the least wait for this refusal."""
        if self._given is None or self._given > now:
            self._given = now
        self._drop(node)
        self._forget(now)
        others = len(self._parties) - (party in self._parties)
        place = others + self._parties.get(party, 0) + 1
        wait = max(
            least,
            min((now - self._given) // 2, LONGEST_IDLE_RETRY_MS),
            min(1000 * place // RETRIES_PER_SECOND, FARTHEST_RETRY_MS),
        )
        self._due[node] = now + wait, party
        self._parties[party] += 1
        heapq.heappush(self._queue, (now + wait, node))
        return wait

    def _forget(self, now: int) -> None:
        """Drop nodes that did not retry in time, and waits that were replaced by later ones."""
        while self._queue:
            due, node = self._queue[0]
            told_since = node not in self._due or self._due[node][0] != due
            if not told_since and due + RETRY_GRACE_MS >= now:
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
