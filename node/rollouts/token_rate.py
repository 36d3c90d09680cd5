"""The tokens per second that an engine generates, from its complete groups. Pure.

Rules
1. The rate is over the last `WINDOW_SECONDS`, or over four times the last group's duration where that is longer: a
   window of less than a group would show its end as a burst.
2. A group counts when it is complete: then its tokens are worth something.
"""

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
        self._durations: deque[tuple[float, float]] = deque(maxlen=MEDIAN_GROUPS)
        """Seconds of a group, and of a rollout of it in the mean."""

    def note(self, tokens: int, began: float, now: float, part: float = 1.0) -> None:
        """Note a complete group. `part`: tokens of a rollout of it, in the mean, by those of the longest."""
        self._durations.append((now - began, (now - began) * part))
        self._groups.append((began, now, tokens))

    def usual_durations(self) -> tuple[float, float] | None:
        """Return the seconds that a group takes, and a rollout of it, the medians of the last ones; None: no group is
        complete yet."""
        if not self._durations:
            return None
        groups, rows = zip(*self._durations, strict=True)
        return statistics.median(groups), statistics.median(rows)

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
