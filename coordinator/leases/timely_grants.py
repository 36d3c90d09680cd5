"""Bound the work that is paid and comes too late to be trained on, at the grant: a lease that was given is always paid.

Rules
1. Groups count by weight over an epoch: those that are good and too old at their verdict, over all that could be
   trained on. Groups of twins, canaries and such without a reward do not count.
2. While that share of the last epoch is above `most`, a lease is given only if its group comes back trainable more
   likely than not: if the median of the node's turnarounds, and the time to a verdict, end before the learner begins
   the step for which the version is too old.
3. Such a lease ends by then, so that a node that waits to the end of its leases is in time as well. A learner that
   moves faster than it did costs no node anything.
4. A node without a measured turnaround is not limited, nor is a learner without a measured step. After a restart the
   share is unknown until an epoch has closed, and nothing is limited.
"""

from collections.abc import Sequence
from fractions import Fraction
from statistics import median

from echo2.coordinator.accounts.decided import Decided


class TimelyGrants:
    """The bound of rule 2. `most`: share of the work; None: there is no bound. `last`: last of the last epoch."""

    def __init__(self, most: Fraction | None = None) -> None:
        self.most = most
        self.last = Fraction(0)
        self._work = self._late = 0

    def on_decided(self, end: Decided) -> None:
        """Count a group that is good, at its verdict."""
        if (group := end.good) is not None:
            self.note(end.weight, late=group.late)

    def note(self, weight: int, *, late: bool) -> None:
        """Count work that is good. `late`: whether it is too old to be trained on."""
        self._work += weight
        self._late += weight * late

    def turn_over(self) -> None:
        """Begin another epoch."""
        self.last = Fraction(self._late, self._work) if self._work else Fraction(0)
        self._work = self._late = 0

    @property
    def bounded(self) -> bool:
        """True while leases are bounded."""
        return self.most is not None and self.last > self.most

    def window(self, steps: int, step: float | None, verdict: float) -> float | None:
        """Return the milliseconds within which a group must be back to be trained on; None: it is not limited.
        `steps`: that the learner may begin before the version is too old. `step`: ms of one; None: not measured.
        `verdict`: ms from a group to its verdict."""
        return steps * step - verdict if self.bounded and step else None


def comes_too_late(window: float | None, turnarounds: Sequence[int]) -> bool:
    """Tell whether a node's lease would come back too late (rule 2). `window`: see `TimelyGrants.window`.
    `turnarounds`: turnarounds of its last groups, ms."""
    return window is not None and bool(turnarounds) and median(turnarounds) > window


def lasts_until(lasts: int, window: float | None, turnarounds: Sequence[int], least: int) -> int:
    """Return how long a node's lease lasts, ms (rule 3). `lasts`: otherwise. `least`: the shortest of the run."""
    return lasts if window is None or not turnarounds else min(lasts, max(least, int(window)))
