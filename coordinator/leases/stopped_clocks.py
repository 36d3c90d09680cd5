"""The clocks of leases stand while the environment computes for them.

Rules
1. A lease's clock stands while at least one of its turns waits for the environment, at most `most` ms in all: as told
   with its last turn, by the standing of its key. Then the time runs: an environment that never answers keeps no lease
   open for ever.
2. `extend` moves the end of each such lease by the time since the last call. Call it before leases expire, and
   before an answer states an end. After a restart a lease's time stands from its next turn on; the absence itself is
   extended like any other (absence.py).
3. Less than `LEAST_STOP_MS` ms are kept until more come, as most environments answer within a few.
"""

from typing import Final

from echo2.coordinator.leases.lease_table import LeaseTable

LEAST_STOP_MS: Final = 100
"""Milliseconds that are worth a write to run.sqlite."""


class StoppedClocks:
    """The leases whose clocks stand, by (turns that wait, extended up to, ms extended in all)."""

    def __init__(self, leases: LeaseTable) -> None:
        self._leases = leases
        self._most: dict[bytes, int] = {}
        """By lease: most ms in all (rule 1)."""
        self._stopped: dict[bytes, tuple[int, int]] = {}
        """By lease: the number of turns that wait, and the time up to which it was extended."""
        self._extended: dict[bytes, int] = {}
        """By lease: ms in all."""
        self._kept: dict[bytes, int] = {}
        """By lease: ms that are not written yet (rule 3)."""

    def stop(self, lease: bytes, now: int, most: int) -> None:
        """Note that a turn waits. `most`: see rule 1."""
        self._most[lease] = most
        waiting, since = self._stopped.get(lease, (0, now))
        self._stopped[lease] = waiting + 1, since

    def go_on(self, lease: bytes, now: int) -> None:
        """Note that a turn was answered; extend its lease."""
        if lease in self._stopped:
            self._extend(lease, now)
            waiting, since = self._stopped[lease]
            self._stopped[lease] = waiting - 1, since
            if waiting == 1:
                del self._stopped[lease]

    def extend(self, now: int) -> None:
        """Extend all leases whose clocks stand (rule 2)."""
        for lease in self._stopped:
            self._extend(lease, now)

    def extend_one(self, lease: bytes, now: int) -> int:
        """Extend a lease if its clock stands; return by how many ms."""
        return self._extend(lease, now) if lease in self._stopped else 0

    def forget(self, lease: bytes) -> None:
        self._stopped.pop(lease, None)
        self._extended.pop(lease, None)
        self._kept.pop(lease, None)
        self._most.pop(lease, None)

    def _extend(self, lease: bytes, now: int) -> int:
        waiting, since = self._stopped[lease]
        extended = self._extended.get(lease, 0)
        more = min(max(0, now - since), self._most[lease] - extended)
        self._stopped[lease] = waiting, now
        if more <= 0:
            return 0
        self._extended[lease] = extended + more
        more += self._kept.pop(lease, 0)
        if more < LEAST_STOP_MS:
            self._kept[lease] = more
            return 0
        self._leases.extend(lease, more)
        return more
