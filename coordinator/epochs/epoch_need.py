"""The work that an epoch buys: enough to keep the learner busy, in milli-RE per hour.

Rules
1. The need is 3600 times the rollouts per second to provision (coordinator/metrics/capacity.py, gamma mu_min) times the
   mean weight of an accepted rollout. It is at least the operator's least need, which alone counts while nothing is
   measured. Where no supply is enough, gamma times what the learner draws is bought.
2. After a restart the last rollouts per second that were known count until the step is measured again.
3. It is stated in `epoch.announced`: a replay reads it there, and computes none of this.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.market.epoch_terms import MOST_NEED
from echo2.coordinator.metrics.views import CapacityView

RATE_DENOMINATOR = 10**6
"""Denominator to which rollouts per second are rounded."""
MOST_STORED: Final = 1 << 62
FACT: Final = "rollouts to provision"
"""The last that were known, in parts of `RATE_DENOMINATOR` per second (rule 2)."""


def provisioned_rate(capacity: CapacityView) -> float | None:
    """Return the rollouts per second to provision; None: the learner's step is not measured yet."""
    if capacity.need is not None or not capacity.step_seconds:
        return capacity.need
    return (capacity.gamma or 1.0) * capacity.rollouts_per_step / capacity.step_seconds


class EpochNeed:
    """The need of the next epoch. `rollouts`: returns those per second to provision; None: not measured yet."""

    def __init__(self, database: Database, rollouts: Callable[[], float | None], least: int) -> None:
        self._database, self._rollouts, self._least = database, rollouts, least

    def now(self) -> int:
        """Return the need, milli-RE per hour."""
        rate = self._rate()
        query = "SELECT sum(weight), sum(rollouts) FROM sums WHERE node = x'' AND verdict = 'accepted'"
        weight, rollouts = self._database.all(query)[0]
        if rate is None or not rollouts or not weight:
            return self._least
        exact = 3600 * Fraction(rate, RATE_DENOMINATOR) * Fraction(int(weight), int(rollouts))
        return min(MOST_NEED, max(self._least, int(exact)))

    def _rate(self) -> int | None:
        """Return the rollouts to provision, in parts of `RATE_DENOMINATOR` per second; None: they were never known
        (rule 2)."""
        rate, stored = self._rollouts(), self._database.fact(FACT)
        known = stored if isinstance(stored, int) else None
        if rate is None:
            return known
        now = round(rate * RATE_DENOMINATOR)
        if now != known:
            self._database.set_fact(FACT, min(now, MOST_STORED))
        return now
