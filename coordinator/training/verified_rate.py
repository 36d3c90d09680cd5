"""Measure how many rollouts per second a scorer can verify. Pure.

A visit that had more groups than go to the scorer at once shows what it can do. A shorter one leaves it idle at times:
it can only show that the rate is higher than thought.
"""

from echo2.runtime.quantiles import moving_average


class VerifiedRate:
    """`value`: rollouts per second while there is work. `each`: mean seconds per rollout, of all visits. None: not
    measured yet."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.each: float | None = None

    def on_visit(self, rollouts: int, seconds: float, *, full: bool) -> None:
        """Note a visit. `full`: whether it had more groups than go to the scorer at once."""
        if seconds <= 0 or not rollouts:
            return
        rate = rollouts / seconds
        self.each = moving_average(self.each, seconds / rollouts)
        if full:
            self.value = moving_average(self.value, rate)
        elif self.value is not None:
            self.value = max(self.value, rate)
