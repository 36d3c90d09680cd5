"""Decide when a full checkpoint is due: as often as costs a given share of the time. Pure.

Between two checkpoints are at most `MOST_ENTRIES` journal entries, so that the journal's bytes on disk are bounded. A
restart makes at most as many steps again as take 1/share times as long as a checkpoint, and one more.
"""

from typing import Final

MOST_ENTRIES: Final = 256


class CheckpointPace:
    """The pace of a session. `share`: share of the time that checkpoints may take; from 1 on, each export has one."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._worked, self._entries = 0.0, 0
        self._cost: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether the next export ends with a checkpoint: always before one was measured."""
        if self._share >= 1 or self._cost is None or self._entries >= MOST_ENTRIES:
            return True
        return self._worked * self._share >= self._cost

    def on_work(self, seconds: float) -> None:
        """Note the seconds of a step, its export included."""
        self._worked += seconds

    def on_entry(self) -> None:
        """Note an entry of the journal."""
        self._entries += 1

    def wrote(self, seconds: float) -> None:
        """Note the seconds that a checkpoint took."""
        self._worked, self._entries, self._cost = 0.0, 0, seconds
