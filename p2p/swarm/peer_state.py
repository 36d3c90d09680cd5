"""The peers, stripes and chunks of a download, as p2p/swarm/picker.py knows them.

A set of chunks is an integer: bit i is chunk i. Times are in seconds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

CHUNK_STALL_SECONDS = 5.0
SLOWEST_LINK_RATE = 64 << 10
"""Bytes per second of the slowest link from which a first chunk is awaited in full."""
STALL_MIN = 2.0
STALL_FACTOR, ENDGAME_FACTOR = 8, 2
ENDGAME_MIN, ENDGAME_STALL, ENDGAME_SLOW = 0.5, 1.0, 512 << 10
WINDOW_FIRST = 2
"""Requests open at a peer that is no parent and has not sent a chunk yet."""


@dataclass
class PeerState:
    """One connected peer. `progress`: when its last chunk came, or its first open request was sent. `has`, `requested`:
    sets of chunks."""

    progress: float
    has: int = 0
    requested: int = 0
    cancelled: dict[int, int] = field(default_factory=dict)
    """Cancelled requests per chunk; each may still be answered."""
    interval: float | None = None
    """Mean seconds between chunks, weighted towards the latest."""
    stalled: bool = False
    pipeline: int = WINDOW_FIRST
    """Requests that may be open at a peer that is no stripe's parent (p2p/swarm/picker.py, rule 3)."""

    def on_answer(self, index: int) -> None:
        """Note the answer to a request for a chunk, or to one that was cancelled."""
        if self.requested >> index & 1:
            self.requested ^= 1 << index
        elif (left := self.cancelled.pop(index, 0) - 1) > 0:
            self.cancelled[index] = left


def stall_seconds(peer_state: PeerState, chunk_size: int, *, ending: bool) -> float:
    """Return the seconds without a chunk after which a peer is stalled (p2p/swarm/picker.py, rule 4). `ending`: whether
    every missing chunk is requested (the endgame)."""
    interval = peer_state.interval
    if ending:
        hasty = math.inf if interval is None else max(ENDGAME_MIN, ENDGAME_FACTOR * interval)
        return min(hasty, ENDGAME_STALL + chunk_size / ENDGAME_SLOW)
    first = CHUNK_STALL_SECONDS + chunk_size / SLOWEST_LINK_RATE
    known = first if interval is None else max(STALL_MIN, STALL_FACTOR * interval)
    return known if peer_state.requested & peer_state.has else 2 * known


@dataclass
class Stripe:
    """One stripe of the plan. `chunks`: a set. `window`: requests that may be open at its parent."""

    chunks: int
    parent: str
    window: int
    last_progress: float
    """Time at which its chunks were last reserved for its parent, or a peer other than the fallback last announced a
    loose missing one of them."""
    behind_since: float | None = None
    """Since when the stripe has lagged behind another one; None: it does not."""
    is_lagging: bool = False
    """Whether the stripe has lagged behind another one for too long, so that its chunks are loose (p2p/swarm/picker.py,
    rule 2)."""


class Availability:
    """Number of peers that have each chunk. Bit i of plane p is bit p of chunk i's count: one addition counts all
    chunks."""

    def __init__(self) -> None:
        self._planes: list[int] = []

    def add(self, chunks: int) -> None:
        """Count one more peer for each of these chunks."""
        for place, plane in enumerate(self._planes):
            if not chunks:
                return
            self._planes[place], chunks = plane ^ chunks, plane & chunks
        if chunks:
            self._planes.append(chunks)

    def remove(self, chunks: int) -> None:
        """Count one peer less for each of these chunks."""
        for place, plane in enumerate(self._planes):
            self._planes[place], chunks = plane ^ chunks, ~plane & chunks

    def rarest(self, chunks: int) -> int:
        """Return those of the chunks that the fewest peers have."""
        for plane in reversed(self._planes):
            chunks = chunks & ~plane or chunks
        return chunks


def bits(chunks: int) -> Iterator[int]:
    """Yield each member of a set of chunks, as a set of its own."""
    while chunks:
        yield chunks & -chunks
        chunks &= chunks - 1
