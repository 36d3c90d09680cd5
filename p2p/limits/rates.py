"""Token buckets, one a name. Pure: `now` in seconds, monotonic. Only so many buckets are remembered; a full one is the
same as none."""

from typing import Final

KEPT: Final = 4096


class Buckets:
    """A token bucket for each name: `burst` at once, then `rate` a second."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._empty_at: dict[str, float] = {}
        """When the bucket would have been empty, had it always been filling: less is fuller."""

    def take(self, name: str, now: float) -> float:
        """Take one; seconds until it may be used (0: at once)."""
        at = self._next(name, now)
        self._empty_at.pop(name, None)
        self._empty_at[name] = at
        if len(self._empty_at) > KEPT:
            del self._empty_at[next(iter(self._empty_at))]
        return max(0.0, at - now)

    def wait(self, name: str, now: float) -> float:
        """What `take` would say; nothing is taken."""
        return max(0.0, self._next(name, now) - now)

    def _next(self, name: str, now: float) -> float:
        floor = now - self._burst / self._rate
        return max(self._empty_at.get(name, floor), floor) + 1 / self._rate
