"""Sum up the accepted groups for the log: the first one at once, later ones once a minute; and tell where none of them
is learned from. Pure."""

from dataclasses import dataclass
from typing import Final, NamedTuple

PERIOD: Final = 60_000
"""Least milliseconds from one summary to the next."""
LATE_IN_ROW: Final = 4
"""Groups in a row that came too late to be learned from, until the owner is told; then at twice as many each time."""


class AcceptedWork(NamedTuple):
    """Number of groups, and their work in points."""

    groups: int
    points: float


@dataclass
class AcceptedTally:
    """The accepted groups since the last summary. `weight`: their work, milli-RE. `said`: time of that summary, ms;
    None: there was none. `late`: number of the newest groups, in a row, that came too late to be learned from."""

    groups: int = 0
    weight: int = 0
    said: int | None = None
    late: int = 0

    def add(self, weight: int, now: int) -> AcceptedWork | None:
        """Count a group; return the summary if one is due. `now`: ms."""
        self.groups, self.weight = self.groups + 1, self.weight + weight
        if self.said is not None and 0 <= now - self.said < PERIOD:
            return None
        summary = AcceptedWork(self.groups, round(self.weight / 1000, 3))
        self.groups, self.weight, self.said = 0, 0, now
        return summary

    def note_age(self, *, late: bool) -> bool:
        """Note whether a group came too late to be learned from; return whether the owner is to be told."""
        self.late = self.late + 1 if late else 0
        rounds, rest = divmod(self.late, LATE_IN_ROW)
        return rounds > 0 and rest == 0 and rounds.bit_count() == 1
