"""An estimate of when to request the next lease, so that it arrives just before the current group is done. Pure.

A lease binds the version loaded now, and its time runs from the request. So a lease is requested as late as possible:
`TRIPS` round trips before the expected end of the current group. A group is expected to take as long as the last one.
"""

from typing import Final

TRIPS: Final = 2.0
"""One round trip for the request, one as a margin for the network and the coordinator's disk."""


class LeasePrefetch:
    """The estimate for one engine, from the last round trip and the last group. All times are in seconds."""

    def __init__(self) -> None:
        self._trip = 0.0
        self._group: float | None = None

    def answered(self, seconds: float) -> None:
        """Record the time from the request of a lease to its arrival."""
        self._trip = seconds

    def generated(self, seconds: float) -> None:
        """Record the time that the engine took for a group."""
        self._group = seconds

    @property
    def wait(self) -> float | None:
        """Time from the start of a group to the request for the next lease; None before the first group."""
        return None if self._group is None else max(0.0, self._group - TRIPS * self._trip)
