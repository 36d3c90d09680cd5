"""Decide how many steps lie between two published versions (kappa). Pure.

Rules
1. A run has a fixed period, or `auto`.
2. auto is the smallest period that the uplink sustains, ceil(time of a broadcast / time of a step): one broadcast ends
   before the next begins. It is never above kappa* = max(1, S - ceil(B/T)) (coordinator/metrics/capacity.py).
3. Measurements vary. So the period changes only after `AGREEING_PUBLICATIONS` publications in a row that ask for a
   longer one, or for a shorter one; then it takes the least change that one of them asks for. A publication that asks
   for the present period ends the row.
4. A shorter period is asked for only where a broadcast `SPARE_BROADCAST_FACTOR` times as long would still end before
   the next one. Else a broadcast of about a whole number of steps would change the period for ever.
"""

import math
from typing import Final, NamedTuple

from echo2.coordinator.metrics.capacity import best_period

AGREEING_PUBLICATIONS: Final = 3
SPARE_BROADCAST_FACTOR: Final = 1.25


class PeriodTerms(NamedTuple):
    """Seconds: of a step, of a broadcast (p90 over nodes), and from a version to a verdict on its groups (B)."""

    step: float
    broadcast: float
    turnaround: float


class PublishPeriod:
    """The period of a run. `setting`: None: auto. `staleness`: S. `current`: kappa; for auto that of an earlier start
    of the run, or 1."""

    def __init__(self, setting: int | None, staleness: int, current: int = 1) -> None:
        self.automatic = setting is None
        self.current = setting or max(1, min(current, staleness))
        self._staleness = staleness
        self._asked: list[int] = []

    def is_due(self, step: int, version: int) -> bool:
        """Tell whether a version goes out after `step`. `version`: the newest published one, named by its step."""
        return step - version >= self.current

    def on_publication(self, terms: PeriodTerms | None) -> bool:
        """Note a publication; return whether the period changed. `terms`: None: not measured yet."""
        if not self.automatic or terms is None or terms.step <= 0:
            return False
        wanted = self._wanted_period(terms)
        if not all((one > self.current) == (wanted > self.current) for one in self._asked):
            self._asked.clear()
        if wanted == self.current:
            self._asked.clear()
            return False
        self._asked.append(wanted)
        if len(self._asked) < AGREEING_PUBLICATIONS:
            return False
        self.current = min(self._asked, key=lambda one: abs(one - self.current))
        self._asked.clear()
        return True

    def _wanted_period(self, terms: PeriodTerms) -> int:
        wanted = wanted_period(self._staleness, terms)
        if wanted >= self.current:
            return wanted
        spared = wanted_period(self._staleness, terms._replace(broadcast=SPARE_BROADCAST_FACTOR * terms.broadcast))
        return min(self.current, spared)  # rule 4


def wanted_period(staleness: int, terms: PeriodTerms) -> int:
    """Return the period of rule 2."""
    sustained = math.ceil(terms.broadcast / terms.step)
    return max(1, min(sustained, best_period(staleness, terms.step, terms.turnaround)))
