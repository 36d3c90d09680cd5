"""When to ask for the next lease, so that it is here when the group at hand is done and not much sooner. Pure.

A lease binds the version that is held now, and its time runs from when it was asked for: so it is asked for at the last
moment, `TRIPS` round trips before the group at hand is expected to be done, which is as long as the one before took.
"""

from typing import Final

TRIPS: Final = 2.0
"""One for the question itself, one for what the network and the coordinator's disk may add to it."""


class LeasePrefetch:
    """Seconds throughout."""

    def __init__(self) -> None:
        self._trip = 0.0
        self._group: float | None = None

    def answered(self, seconds: float) -> None:
        """A lease came so long after it was asked for."""
        self._trip = seconds

    def generated(self, seconds: float) -> None:
        """A group took the engine so long."""
        self._group = seconds

    @property
    def wait(self) -> float | None:
        """From the beginning of a group to the question for the next; None: nothing was made yet."""
        return None if self._group is None else max(0.0, self._group - TRIPS * self._trip)
