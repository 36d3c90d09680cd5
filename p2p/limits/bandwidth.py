"""The owner's limits: a token bucket of bytes, and whose turn it is when that lets something through. Callers sleep.

1. A limited machine moves its rate, after a pause `BURST` seconds of it at once. What is sent is booked when it leaves,
   what is received when it is asked for: a limited downloader asks for no more than it may take.
2. Peers that wait at a limited uploader take turns by bytes (start-time fair queueing, Goyal et al. 1996): first who
   was sent least since it came, however many streams it has and however large its chunks are. Who comes, or comes back,
   begins level with the one that is served then, and has no claim to what it missed.
3. Where it is known whom a plan lets this machine feed, these go before others: all others together are one peer in
   line, and get about `OTHERS` of the uplink. Whoever feeds a branch would else be starved by those who ask because
   their branch has nothing.
"""

from collections.abc import Collection
from heapq import heappop, heappush
from typing import Generic, TypeVar

from p2p.limits.token_bucket import TokenBucket

BURST = 0.25
"""Seconds of the rate that may leave at once after a pause."""
OTHERS_SHARE = 0.25
_OTHERS = ""
"""In place of their ids."""

S = TypeVar("S")


def bandwidth(rate: float | None) -> TokenBucket:
    """Return the bucket of a machine limited to `rate` bytes per second; None for no limit. Raises `ValueError`."""
    return TokenBucket(rate, BURST * (rate or 0.0))


class FairQueue(Generic[S]):
    """The order of streams at one uplink. A stream is in line with one chunk at a time."""

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket = bucket
        self._heap: list[tuple[float, int, S]] = []
        self._waiting: dict[S, tuple[float, int, str, float, int]] = {}
        self._sent: dict[str, float] = {}
        """Peer -> what it has been sent and is in line for, counted from where it came."""
        self._virtual_time = 0.0
        self._number = 0
        self._children = frozenset[str]()

    def prioritise(self, children: Collection[str]) -> None:
        """Rule 3 for these, from now on; none: all are alike."""
        self._children = frozenset(children)

    def enqueue(self, stream: S, peer: str, size: int) -> None:
        """`stream`, to `peer`, has `size` bytes to send; no effect while it is in line."""
        if stream in self._waiting:
            return
        self._number += 1
        weight = 1.0
        if self._children and peer not in self._children:
            peer, weight = _OTHERS, max(len(self._children) * OTHERS_SHARE / (1 - OTHERS_SHARE), 1.0)
        start = max(self._virtual_time, self._sent.get(peer, 0.0))
        self._sent[peer] = start + size / weight
        self._waiting[stream] = (start, self._number, peer, size / weight, size)
        heappush(self._heap, (start, self._number, stream))

    def dequeue(self, stream: S) -> bool:
        """`stream` has nothing to send after all. Whether it was in line."""
        left = self._waiting.pop(stream, None)
        if left is not None and left[2] in self._sent:
            self._sent[left[2]] -= left[3]
        return left is not None

    def head(self) -> S | None:
        """Whose turn it is."""
        while self._heap:
            start, number, stream = self._heap[0]
            if stream in self._waiting and self._waiting[stream][:2] == (start, number):
                return stream
            heappop(self._heap)
        return None

    def delay(self, stream: S, now: float) -> float | None:
        """Seconds until `stream`, which is in line, may send; None: another stream goes first, and then says so."""
        if self._bucket.rate is None:
            return 0.0
        wait = self._bucket.delay(0, now)
        return wait if wait > 0 or self.head() == stream else None

    def consume(self, stream: S, now: float) -> list[S]:
        """`stream` sends now what it is in line with; the streams that are to look again."""
        start, _, _, _, size = self._waiting.pop(stream)
        self._bucket.consume(size, now)
        self._virtual_time = max(self._virtual_time, start)
        if len(self._sent) > 2 * len(self._waiting) + 64:
            self._sent = {one: sent for one, sent in self._sent.items() if sent > self._virtual_time}
        return list(self._waiting) if self._bucket.rate is not None else []
