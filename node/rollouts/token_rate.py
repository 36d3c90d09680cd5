"""The tokens per second that an engine generates, from its complete groups. Pure.

Rules
1. The rate is over the last `WINDOW_SECONDS`, or over four times the last group's duration where that is longer: a
   window of less than a group would show its end as a burst.
2. A group counts when it is complete: then its tokens are worth something.
"""

import itertools
import statistics
from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 300.0
MEDIAN_GROUPS: Final = 32
"""Groups over which the usual duration is taken."""


class TokenRate:
    """The rate of one engine. Times are of a clock that never goes back, seconds."""

    def __init__(self) -> None:
        self._groups = deque[tuple[float, float, int]]()
        """Of each group: when it began, when it was complete, and its tokens."""

    def note(self, tokens: int, began: float, now: float) -> None:
        """Note a complete group."""
        self._groups.append((began, now, tokens))

    def usual_duration(self) -> float | None:
        """Return the seconds that a group takes, the median of the last ones; None: none is complete yet."""
        last = itertools.islice(reversed(self._groups), MEDIAN_GROUPS)
        return statistics.median(ended - began for began, ended, _ in last) if self._groups else None

    def per_second(self, now: float) -> float | None:
        """Return the rate; None: no group is complete yet."""
        if not self._groups:
            return None
        began, ended, _ = self._groups[-1]
        window = max(WINDOW_SECONDS, 4 * (ended - began))
        while len(self._groups) > 1 and self._groups[0][1] <= now - window:
            self._groups.popleft()
        inside = [group for group in self._groups if group[1] > now - window]
        first = min((group[0] for group in inside), default=now)
        seconds = min(window, now - first)
        return sum(group[2] for group in inside) / seconds if seconds > 0 else 0.0
