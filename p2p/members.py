"""What a download (p2p/swarm.py) remembers of a peer and a stripe. Sets of chunks are integers: bit i is chunk i."""

from dataclasses import dataclass, field

WINDOW_FIRST = 2
"""Asks open at a peer that is no parent and has not sent a chunk yet."""


@dataclass
class Member:
    progress: float
    has: int = 0
    owed: int = 0
    excused: dict[int, int] = field(default_factory=dict)
    """Chunk -> asks taken back; it may be on its way all the same, and so often."""
    interval: float | None = None
    """Mean seconds from one chunk to the next, the last few."""
    stalled: bool = False
    ahead: int = WINDOW_FIRST
    """Asks that may be open, unless it is a stripe's parent (rule 3)."""


@dataclass
class Stripe:
    chunks: int
    parent: str
    window: int
    behind_since: float | None = None
    lags: bool = False
