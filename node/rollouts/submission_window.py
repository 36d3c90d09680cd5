"""The window of submissions: how many may be under way to the coordinator at once. Pure.

Rules
1. At most `most` submissions are under way, with at most `MOST_BYTES` together; one may be larger and then goes by
   itself. `MOST_UNDER_WAY` and the requests for leases are fewer than the requests that a coordinator takes of a peer
   at once (p2p/limits/request_slots.py).
2. The window begins at one and grows by one with each quick answer: it doubles with each round trip. An answer is quick
   while it takes at most `QUICK_FACTOR` times as long as the quickest of the last `REMEMBERED_ANSWERS`. Slower answers
   say that the link or the coordinator has a queue, and more submissions would only make it longer.
3. A coordinator that turns a submission away halves the window: many nodes with full outboxes then leave it room.
"""

from collections import deque
from typing import Final

MOST_UNDER_WAY: Final = 16
MOST_BYTES: Final = 4 << 20
QUICK_FACTOR: Final = 2.0
REMEMBERED_ANSWERS: Final = 64
"""Answers among which the quickest is searched: a node may have moved to a slower route."""


class SubmissionWindow:
    """The window. `most`: submissions that may be under way now."""

    def __init__(self) -> None:
        self.most = 1
        self._under_way = self._nbytes = 0
        self._seconds: deque[float] = deque(maxlen=REMEMBERED_ANSWERS)

    def admits(self, nbytes: int) -> bool:
        """Tell whether a further submission of so many bytes may begin."""
        return not self._under_way or (self._under_way < self.most and self._nbytes + nbytes <= MOST_BYTES)

    def begin(self, nbytes: int) -> None:
        """Count a submission that is under way now."""
        self._under_way, self._nbytes = self._under_way + 1, self._nbytes + nbytes

    def end(self, nbytes: int) -> None:
        """Count a submission no more, whatever became of it."""
        self._under_way, self._nbytes = self._under_way - 1, self._nbytes - nbytes

    def note_answer(self, seconds: float) -> None:
        """Note an answer to a submission after so many seconds (rule 2)."""
        self._seconds.append(seconds)
        if seconds <= QUICK_FACTOR * min(self._seconds):
            self.most = min(MOST_UNDER_WAY, self.most + 1)

    def halve(self) -> None:
        """Halve the window: the coordinator had no place for a submission (rule 3)."""
        self.most = max(1, self.most // 2)
