"""Exponential backoff: the pause before something that failed is tried again. Pure: callers count, draw and sleep.

1. The pause after the first failure is `least`. Each further failure in a row multiplies it by `factor`, up to `most`.
2. With `jitter` a pause is drawn from its last part, so that those that failed together do not return together: 0.5
   draws from the upper half.
"""

from dataclasses import dataclass

_ENOUGH = 64
"""Failures after which no pause grows any more; a power of more would overflow."""


@dataclass(frozen=True)
class Backoff:
    """`least`, `most`: pauses, in any one unit of time. `jitter`: the part of a pause that is drawn, 0 to 1."""

    least: float
    most: float
    jitter: float = 0.0
    factor: float = 2.0

    def delay(self, failures: int, draw: float = 1.0) -> float:
        """Return the pause after so many failures in a row; 0 after none. `draw`: random, from [0, 1), new for each."""
        if failures <= 0:
            return 0.0
        pause = min(self.most, self.least * self.factor ** min(failures - 1, _ENOUGH))
        return pause * (1 - self.jitter * (1 - draw))

    def after(self, pause: float) -> float:
        """Return the pause that follows one of `pause`, without jitter. `pause`: 0 before the first failure."""
        return min(self.most, max(self.least, self.factor * pause))
