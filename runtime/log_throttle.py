"""Count frequent events and log them rarely: one line per subject and period, with the count since the last."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

THROTTLE_SECONDS: Final = 60.0


class LogThrottle:
    """Count events by subject. Safe in any thread. Use few subjects: each is remembered for good."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, seconds: float = THROTTLE_SECONDS) -> None:
        """`clock`: monotonic seconds. `seconds`: the period."""
        self._clock, self._seconds = clock, seconds
        self._counts: Counter[str] = Counter()
        self._said: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def count(self, subject: str) -> int:
        """Count one event. Return the number since the last line if a line is due; else 0."""
        with self._lock:
            self._counts[subject] += 1
            now, (at, told) = self._clock(), self._said.get(subject, (-math.inf, 0))
            if now - at < self._seconds:
                return 0
            self._said[subject] = now, self._counts[subject]
            return self._counts[subject] - told

    def counts(self) -> dict[str, int]:
        """Return the number of events per subject."""
        with self._lock:
            return dict(self._counts)
