"""Exponential backoff: the pause before a failed operation is retried. Pure: callers count, draw and sleep.

1. The pause after the first failure is `least`. Each further failure in a row multiplies it by `factor`, up to `most`.
2. With `jitter` j, the pause is drawn from [(1 - j) x pause, pause), so that clients that failed together do not retry
   together.
"""

from dataclasses import dataclass

_MOST_DOUBLINGS = 64
"""Failures in a row from which on the pause stays the same; a higher power would overflow."""


@dataclass(frozen=True)
class Backoff:
    """`least`, `most`: pauses, in any one unit of time. `jitter`: the share of a pause that is random, 0 to 1."""

    least: float
    most: float
    jitter: float = 0.0
    factor: float = 2.0

    def delay(self, failures: int, draw: float = 1.0) -> float:
        """Return the pause after `failures` failures in a row; 0 after none. `draw`: random, from [0, 1), a new one per
        pause."""
        if failures <= 0:
            return 0.0
        pause = min(self.most, self.least * self.factor ** min(failures - 1, _MOST_DOUBLINGS))
        return pause * (1 - self.jitter * (1 - draw))

    def after(self, pause: float) -> float:
        """Return the pause that follows one of `pause`, without jitter. `pause`: 0 before the first failure."""
        return min(self.most, max(self.least, self.factor * pause))
