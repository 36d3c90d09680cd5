"""Open requests of one downloader at one holder, and the chunks still to announce to it. No I/O: `now` is an argument.

1. Available chunks are sent in the order of their requests. A request for a chunk that the holder lacks is deferred:
   the chunk is sent on its arrival, without another request. A peer that follows a plan sends its parent such requests.
2. Announcements precede chunks and are immediate, so that the downloader can soon request a chunk and forward it. A
   downloader with deferred requests gets those chunks unannounced; the others are announced to it within
   `ANNOUNCE_DELAY` seconds, many at a time.
3. At most `QUEUE_MAX` requests may be open. A downloader that exceeds this breaks the protocol.
"""

from collections.abc import Iterable

from echo2.p2p.errors import Malformed
from echo2.p2p.swarm.messages import INDICES_MAX

QUEUE_MAX = 256
ANNOUNCE_DELAY = 0.25


class RequestQueue:
    """The state of one chunk stream at the holder."""

    def __init__(self) -> None:
        self._available: dict[int, None] = {}
        self._deferred: dict[int, None] = {}
        self._unannounced: list[int] = []
        self._unannounced_since = 0.0
        self._chunks: int | None = None

    def start(self, have: int, chunks: int) -> None:
        """Note that the holder has the payload, or begins to fetch it. `have`: its chunks; bit i is chunk i."""
        self._chunks = chunks
        early, self._deferred = self._deferred, {}
        self.request(early, have)

    def request(self, indices: Iterable[int], have: int) -> None:
        """Enqueue requests. Raises `Malformed` by rule 3. An index beyond the end counts as available, so that
        `NotAvailable` answers it."""
        wanted = tuple(indices)
        if len(self._available) + len(self._deferred) + len(wanted) > QUEUE_MAX:
            raise Malformed(f"more than {QUEUE_MAX} chunks are requested at once")
        for index in wanted:
            here = self._chunks is not None and (index >= self._chunks or have >> index & 1)
            (self._available if here else self._deferred)[index] = None

    def cancel(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._available.pop(index, None)
            self._deferred.pop(index, None)

    def on_chunk(self, index: int, now: float) -> None:
        """Note that the holder has one more chunk."""
        if index in self._deferred:
            del self._deferred[index]
            self._available[index] = None
        else:
            if not self._unannounced:
                self._unannounced_since = now
            self._unannounced.append(index)

    def next_chunk(self) -> int | None:
        """Return the chunk to send next; None for an empty queue."""
        return next(iter(self._available), None)

    def mark_sent(self, index: int) -> None:
        """Note that a chunk is being sent."""
        self._available.pop(index, None)

    def take_announcements(self, now: float) -> tuple[int, ...]:
        """Return the chunks to announce now; they count as announced."""
        if not self._unannounced or self.announce_delay(now):
            return ()
        told, self._unannounced = tuple(self._unannounced[:INDICES_MAX]), self._unannounced[INDICES_MAX:]
        return told

    def announce_delay(self, now: float) -> float:
        """Return the seconds until the next announcement is due; 0 for one due now, or none."""
        return max(self._unannounced_since + ANNOUNCE_DELAY - now, 0.0) if self._unannounced and self._deferred else 0.0
