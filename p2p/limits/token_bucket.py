"""Token buckets: a burst at once, then a rate per second. Pure: `now` in seconds, monotonic; callers sleep or refuse.

1. A bucket holds up to `burst` tokens and gains `rate` per second. Consuming more than it holds leaves a debt, which is
   paid before anything else passes.
2. Among many buckets, one per name, the `MOST_BUCKETS` most recently used are remembered. A forgotten bucket is full
   again.
3. A delay below `ROUNDING_SECONDS` counts as none: sums of fractions are not exact.
"""

import math
from typing import Final

MOST_BUCKETS: Final = 4096
ROUNDING_SECONDS: Final = 1e-6


class TokenBucket:
    """One bucket. `rate`: tokens per second; None for no limit. `burst`: tokens at once."""

    __slots__ = ("_burst", "_empty_at", "rate")

    def __init__(self, rate: float | None, burst: float) -> None:
        """Raises `ValueError` for a rate that is not positive."""
        if rate is not None and not rate > 0:
            raise ValueError("a limit is a positive number per second")
        self.rate, self._burst = rate, burst
        self._empty_at = -math.inf
        """Time at which the bucket was empty, if it has only filled since: the earlier, the fuller. In the future: the
        time at which the debt will be paid."""

    def limit(self, rate: float | None, burst: float) -> None:
        """Take another rate and burst from now on. Raises `ValueError` for a rate that is not positive."""
        self.rate, self._burst = TokenBucket(rate, burst).rate, burst

    def delay(self, tokens: float, now: float) -> float:
        """Return the seconds until `tokens` are available; for 0 tokens, until no debt is left."""
        wait = self._ready(tokens, now) - now
        return wait if wait > ROUNDING_SECONDS else 0.0

    def consume(self, tokens: float, now: float) -> float:
        """Consume tokens, even if not available yet; return the seconds until they are."""
        wait = self.delay(tokens, now)
        self._empty_at = self._ready(tokens, now)
        return wait

    def _ready(self, tokens: float, now: float) -> float:
        if self.rate is None:
            return now
        return max(self._empty_at, now - self._burst / self.rate) + tokens / self.rate


class TokenBuckets:
    """A bucket per name; each use consumes one token."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: dict[str, TokenBucket] = {}

    def delay(self, name: str, now: float) -> float:
        """Return the seconds until the bucket of `name` has a token."""
        return (self._buckets.get(name) or TokenBucket(self._rate, self._burst)).delay(1, now)

    def consume(self, name: str, now: float) -> float:
        """Consume a token; return the seconds until it is available (0: at once)."""
        return self._use_bucket(name).consume(1, now)

    def admit(self, name: str, now: float) -> float:
        """Consume a token if one is available; return the seconds until one is (0: consumed)."""
        bucket = self._use_bucket(name)
        wait = bucket.delay(1, now)
        if not wait:
            bucket.consume(1, now)
        return wait

    def _use_bucket(self, name: str) -> TokenBucket:
        """Return the bucket of a name and mark it as the most recently used (rule 2)."""
        bucket = self._buckets.pop(name, None) or TokenBucket(self._rate, self._burst)
        self._buckets[name] = bucket
        if len(self._buckets) > MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return bucket
