"""Bound the work that is paid and comes too late to be trained on, at the grant: a lease that was given is always paid.

Rules
1. Groups count by weight over an epoch: those that are good and too old at their verdict, over all that could be
   trained on. Groups of twins, canaries, held-out prompts and such without a reward do not count.
2. While that share of the last epoch is above `most`, a lease is given only if its group comes back trainable with a
   chance of `CHANCE` at least. The chance is that the node's usual turnaround, spread as the fleet's, and the time to
   a verdict end before the learner begins the step for which the version is too old (turnaround_odds.py).
3. A node without a measured turnaround is not limited, nor is a learner without a measured step. After a restart the
   share is unknown until an epoch has closed, and nothing is limited.
"""

from fractions import Fraction
from typing import Final

from coordinator.rollouts.turnaround_odds import chance

CHANCE: Final = 0.5


class TimelyGrants:
    """The bound of rule 2. `most`: share of the work; None: there is no bound. `last`: of the last epoch."""

    def __init__(self) -> None:
        self.most: Fraction | None = None
        self.last = Fraction(0)
        self._work = self._late = 0

    def note(self, weight: int, *, late: bool) -> None:
        """Count a group that is good, at its verdict."""
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

    def refuses(self, steps: int, step: float | None, turnaround: float | None, verdict: float, spread: float) -> bool:
        """Tell whether a lease would come back too late (rule 2). `steps`: that the learner may begin before the
        version is too old. `step`, `turnaround`, `verdict`: ms; None: not measured. `spread`: see `chance`."""
        if not self.bounded or not step or not turnaround:
            return False
        return chance((steps * step - verdict) / turnaround, spread) < CHANCE
