"""Sum up the accepted groups for the log: the first one at once, later ones once a minute. Pure."""

from dataclasses import dataclass
from typing import Final, NamedTuple

PERIOD: Final = 60_000
"""Least milliseconds from one summary to the next."""


class AcceptedWork(NamedTuple):
    """Number of groups, and their work in points."""

    groups: int
    points: float


@dataclass
class AcceptedTally:
    """The accepted groups since the last summary. `weight`: their work, milli-RE. `said`: time of that summary, ms;
    None: there was none."""

    groups: int = 0
    weight: int = 0
    said: int | None = None

    def add(self, weight: int, now: int) -> AcceptedWork | None:
        """Count a group; return the summary if one is due. `now`: ms."""
        self.groups, self.weight = self.groups + 1, self.weight + weight
        if self.said is not None and 0 <= now - self.said < PERIOD:
            return None
        summary = AcceptedWork(self.groups, round(self.weight / 1000, 3))
        self.groups, self.weight, self.said = 0, 0, now
        return summary
