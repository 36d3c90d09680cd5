"""The memory of answers to requests of nodes, so that a repeated request gets the same answer."""

from collections import OrderedDict
from typing import Final

MOST_EXPIRY_SKEW_MS: Final = 600_000
"""Most milliseconds between the coordinator's time and a request's expiry."""
MOST_ANSWERS: Final = 4096
MOST_ANSWER_BYTES: Final = 64 << 20


class ResponseLog:
    """The answers given so far, by (node, request id), within bounds: the oldest are dropped first."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes, bytes], tuple[bytes, bytes, int]] = OrderedDict()
        self._bytes = 0

    def find(self, node: bytes, request: bytes) -> tuple[bytes, bytes] | None:
        """Return (hash of the request, answer), if there is one."""
        known = self._known.get((node, request))
        return None if known is None else known[:2]

    def keep(self, node: bytes, request: bytes, digest: bytes, answer: bytes, expires: int, now: int) -> None:
        """Store an answer in place of an earlier one, and drop the oldest beyond the bounds. `expires`, `now`: ms."""
        _, replaced, _ = self._known.pop((node, request), (b"", b"", 0))
        self._known[node, request] = (digest, answer, expires)
        self._bytes -= len(replaced)
        self._bytes += len(answer)
        while self._known and (
            len(self._known) > MOST_ANSWERS or self._bytes > MOST_ANSWER_BYTES or self._oldest_expired(now)
        ):
            _, (_, given, _) = self._known.popitem(last=False)
            self._bytes -= len(given)

    def _oldest_expired(self, now: int) -> bool:
        return next(iter(self._known.values()))[2] + MOST_EXPIRY_SKEW_MS < now
