"""Enforce the owner's bandwidth limits: a token bucket of bytes, and a fair queue at the uplink. Callers sleep.

1. A limited machine transfers at its rate; after a pause, the bytes of `BURST_SECONDS` seconds pass at once. Sent bytes
   are consumed when they leave, received bytes when they are requested: a limited downloader requests no more than it
   may receive.
2. Peers that wait at a limited uplink share it by bytes (start-time fair queueing, Goyal et al. 1996). The peer that
   was sent least goes first, however many streams it has and however large its chunks are. A joining or returning peer
   starts at the current virtual time: idle time earns no credit.
3. The children that the plan assigns to this machine go before other peers. All others together count as one peer in
   the queue, and get about `OTHERS_SHARE` of the uplink. Without this rule, peers that are short of chunks because
   their own branch is starved would starve this machine's children too.
"""

from collections.abc import Collection
from heapq import heappop, heappush
from typing import Generic, TypeVar

from echo2.p2p.limits.token_bucket import TokenBucket

BURST_SECONDS = 0.25
OTHERS_SHARE = 0.25
_OTHER_PEERS = ""
"""The name under which those peers share one place in the queue."""

S = TypeVar("S")


Rate = float | TokenBucket | None
"""Bytes per second; None for no limit; or the bucket of a limit that may change meanwhile."""


def bandwidth(rate: Rate) -> TokenBucket:
    """Return the bucket of a machine limited to `rate`. Raises `ValueError`."""
    return rate if isinstance(rate, TokenBucket) else TokenBucket(rate, BURST_SECONDS * (rate or 0.0))


def change_bandwidth(bucket: TokenBucket, rate: float | None) -> None:
    """Limit a machine's bucket to another rate from now on, in bytes per second, from any thread; None for no limit. A
    debt stays. Raises `ValueError`."""
    bucket.limit(rate, BURST_SECONDS * (rate or 0.0))


class FairQueue(Generic[S]):
    """The order of streams at one uplink. A stream has one chunk in the queue at a time."""

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket = bucket
        self._heap: list[tuple[float, int, S]] = []
        self._waiting: dict[S, tuple[float, int, str, float, int]] = {}
        self._sent: dict[str, float] = {}
        """Virtual time at which the last queued or sent chunk of each peer ends."""
        self._virtual_time = 0.0
        self._number = 0
        self._children = frozenset[str]()

    def prioritise(self, children: Collection[str]) -> None:
        """Let these peers go first from now on (rule 3); an empty collection treats all alike."""
        self._children = frozenset(children)

    def limit(self, rate: float | None) -> list[S]:
        """Limit the uplink to another rate. Return the streams that must check the queue again."""
        change_bandwidth(self._bucket, rate)
        return list(self._waiting)

    def enqueue(self, stream: S, peer: str, size: int) -> None:
        """Enqueue `size` bytes that `stream` has for `peer`; no effect on a stream in the queue."""
        if stream in self._waiting:
            return
        self._number += 1
        weight = 1.0
        if self._children and peer not in self._children:
            peer, weight = _OTHER_PEERS, max(len(self._children) * OTHERS_SHARE / (1 - OTHERS_SHARE), 1.0)
        start = max(self._virtual_time, self._sent.get(peer, 0.0))
        self._sent[peer] = start + size / weight
        self._waiting[stream] = (start, self._number, peer, size / weight, size)
        heappush(self._heap, (start, self._number, stream))

    def dequeue(self, stream: S) -> bool:
        """Remove a stream that has nothing to send after all. Return whether it was in the queue."""
        left = self._waiting.pop(stream, None)
        if left is not None and left[2] in self._sent:
            self._sent[left[2]] -= left[3]
        self.head()
        return left is not None

    def head(self) -> S | None:
        """Return the stream that sends next; None for an empty queue. Forget those before it that have left."""
        while self._heap:
            start, number, stream = self._heap[0]
            if stream in self._waiting and self._waiting[stream][:2] == (start, number):
                return stream
            heappop(self._heap)
        return None

    def delay(self, stream: S, now: float) -> float | None:
        """Return the seconds until `stream`, which is in the queue, may send; None while another stream precedes it,
        whose `consume` then returns `stream` among those to wake."""
        if self._bucket.rate is None:
            return 0.0
        wait = self._bucket.delay(0, now)
        return wait if wait > 0 or self.head() == stream else None

    def consume(self, stream: S, now: float) -> list[S]:
        """Consume the bytes of `stream`, which sends now. Return the streams that must check the queue again."""
        start, _, _, _, size = self._waiting.pop(stream)
        self._bucket.consume(size, now)
        self._virtual_time = max(self._virtual_time, start)
        if len(self._sent) > 2 * len(self._waiting) + 64:
            self._sent = {one: sent for one, sent in self._sent.items() if sent > self._virtual_time}
        self.head()  # without a limit nobody else asks for it, and each stream would be kept for good
        return list(self._waiting) if self._bucket.rate is not None else []
