"""The least rate of a request, a body or an answer that is under way. Pure: `now` in seconds, monotonic.

1. `LEAST_RATE` bytes per second have to move, from the moment on at which the other side is waited for. It may be
   behind that by `RATE_SECONDS` seconds, and never longer without a byte. A line of 64 kbit/s with a latency of 1 s
   moves four times as many.
2. All bytes of a connection count, since a slow line carries one request after the other.
3. So `RATE_SECONDS` seconds after an attacker stops halfway, whatever waits for the rest is given up.
"""

from typing import Final, NamedTuple

LEAST_RATE: Final = 2000.0
RATE_SECONDS: Final = 10.0


class Flow(NamedTuple):
    """Bytes that a connection has moved in one direction so far, and when it moved the last ones."""

    nbytes: int
    at: float

    def plus(self, nbytes: int, now: float) -> "Flow":
        return Flow(self.nbytes + nbytes, now)


class LeastRate:
    """The time that a connection has left. `deadline`: when it ends, unless `extend` finds that bytes have moved."""

    __slots__ = ("_nbytes", "deadline")

    def __init__(self, flow: Flow, now: float) -> None:
        self.deadline = now + RATE_SECONDS
        self._nbytes = flow.nbytes

    def extend(self, flow: Flow, now: float) -> bool:
        """Move the deadline by rule 1; return whether time is left."""
        earned = (flow.nbytes - self._nbytes) / LEAST_RATE
        self.deadline = max(self.deadline, min(self.deadline + earned, flow.at + RATE_SECONDS))
        self._nbytes = flow.nbytes
        return self.deadline > now
