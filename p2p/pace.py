"""A token bucket: the owner's limit on what this machine sends."""

BURST = 0.25
"""Seconds of the rate that may leave at once after a pause."""


class Pace:
    """Books bytes at `rate` bytes per second; None for no limit. Pure: the caller sleeps."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and not rate > 0:
            raise ValueError("an uplink limit is a positive number of bytes per second")
        self._rate = rate
        self._free_at = 0.0

    def book(self, size: int, now: float) -> float:
        """Seconds to wait before `size` bytes may leave."""
        if self._rate is None:
            return 0.0
        start = max(self._free_at, now - BURST)
        self._free_at = start + size / self._rate
        return max(start - now, 0.0)
