"""What one downloader wants of one holder, and what it has not been told yet. No I/O: `now` is an argument.

1. A chunk that is here is sent in the order asked. One that the holder does not have yet stands: it is sent, without
   another word, when it has come. Whoever follows a plan orders so from its parent.
2. News go before chunks, and at once: they let others forward. A downloader with standing orders gets the chunks
   themselves; of the others it hears within `LATER` seconds, many at a time.
3. At most `QUEUE` chunks may be ordered and not sent.
"""

from collections.abc import Iterable

from p2p.errors import Malformed
from p2p.swarm.messages import INDICES_MAX

QUEUE = 256
LATER = 0.25


class RequestQueue:
    """The state of one chunk stream at the holder."""

    def __init__(self) -> None:
        self._ready: dict[int, None] = {}
        self._standing: dict[int, None] = {}
        self._news: list[int] = []
        self._news_since = 0.0
        self._chunks: int | None = None

    def begin(self, have: int, chunks: int) -> None:
        """The holder has the payload, or begins to fetch it: bit i of `have` is chunk i."""
        self._chunks = chunks
        early, self._standing = self._standing, {}
        self.want(early, have)

    def want(self, indices: Iterable[int], have: int) -> None:
        """Ordered. Raises `Malformed`. An index beyond the end is ready at once: to be told that it is nowhere."""
        wanted = tuple(indices)
        if len(self._ready) + len(self._standing) + len(wanted) > QUEUE:
            raise Malformed("too many chunks are asked for")
        for index in wanted:
            here = self._chunks is not None and (index >= self._chunks or have >> index & 1)
            (self._ready if here else self._standing)[index] = None

    def cancel(self, indices: Iterable[int]) -> None:
        """No longer wanted."""
        for index in indices:
            self._ready.pop(index, None)
            self._standing.pop(index, None)

    def came(self, index: int, now: float) -> None:
        """The holder has one more chunk."""
        if index in self._standing:
            del self._standing[index]
            self._ready[index] = None
        else:
            if not self._news:
                self._news_since = now
            self._news.append(index)

    def first(self) -> int | None:
        """The chunk to send next."""
        return next(iter(self._ready), None)

    def sent(self, index: int) -> None:
        """It is on its way."""
        self._ready.pop(index, None)

    def news(self, now: float) -> tuple[int, ...]:
        """What is to be told now; it counts as told."""
        if not self._news or self.quiet(now):
            return ()
        told, self._news = tuple(self._news[:INDICES_MAX]), self._news[INDICES_MAX:]
        return told

    def quiet(self, now: float) -> float:
        """Seconds until there may be news to tell; 0 where they may be told at once."""
        return max(self._news_since + LATER - now, 0.0) if self._news and self._standing else 0.0
