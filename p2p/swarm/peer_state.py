"""What a download (p2p/swarm/picker.py) remembers of peers, stripes and chunks.

A set of chunks is an integer: bit i is chunk i.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

STALL = 5.0
SLOW = 64 << 10
"""Bytes per second of the slowest line from which a first chunk is awaited in full."""
QUIET = 2.0
SLOWER, HASTY = 8, 2
QUIET_END, STALL_END, SLOW_END = 0.5, 1.0, 512 << 10
WINDOW_FIRST = 2
"""Asks open at a peer that is no parent and has not sent a chunk yet."""


@dataclass
class PeerState:
    progress: float
    has: int = 0
    requested: int = 0
    cancelled: dict[int, int] = field(default_factory=dict)
    """Chunk -> asks taken back; it may be on its way all the same, and so often."""
    interval: float | None = None
    """Mean seconds from one chunk to the next, the last few."""
    stalled: bool = False
    ahead: int = WINDOW_FIRST
    """Asks that may be open, unless it is a stripe's parent (rule 3)."""


class StallTimer:
    """Seconds without a chunk after which a peer is stalled (p2p/swarm/picker.py, rule 4)."""

    def __init__(self, chunk_size: int) -> None:
        """`chunk_size`: bytes."""
        self._first = STALL + chunk_size / SLOW
        self._most_at_end = STALL_END + chunk_size / SLOW_END

    def __call__(self, peer_state: PeerState, *, ending: bool) -> float:
        """`ending`: all that is missing has been asked for."""
        if ending:
            hasty = math.inf if peer_state.interval is None else max(QUIET_END, HASTY * peer_state.interval)
            return min(hasty, self._most_at_end)
        known = self._first if peer_state.interval is None else max(QUIET, SLOWER * peer_state.interval)
        return known if peer_state.requested & peer_state.has else 2 * known


@dataclass
class Stripe:
    chunks: int
    parent: str
    window: int
    news: float
    """When it was last fed by its parent, or another peer told of a chunk of it."""
    behind_since: float | None = None
    lags: bool = False


class Availability:
    """How many hold each chunk. Bit i of plane p is bit p of chunk i's number: all chunks are counted at once."""

    def __init__(self) -> None:
        self._planes: list[int] = []

    def add(self, chunks: int) -> None:
        """One more holds these."""
        for place, plane in enumerate(self._planes):
            if not chunks:
                return
            self._planes[place], chunks = plane ^ chunks, plane & chunks
        if chunks:
            self._planes.append(chunks)

    def remove(self, chunks: int) -> None:
        """One of those who hold these does so no longer."""
        for place, plane in enumerate(self._planes):
            self._planes[place], chunks = plane ^ chunks, ~plane & chunks

    def rarest(self, chunks: int) -> int:
        """Those of them that fewest hold."""
        for plane in reversed(self._planes):
            chunks = chunks & ~plane or chunks
        return chunks


def bits(chunks: int) -> Iterator[int]:
    """Each of them alone."""
    while chunks:
        yield chunks & -chunks
        chunks &= chunks - 1
