"""As much as S allows: ECHO2_STAND_INS=window=benchmarks.paced.room_window (runtime/stand_ins.py). The anchor of runs
under the window of leases."""

from typing import Final

from echo2.coordinator.leases.lease_terms import InFlight
from echo2.coordinator.leases.lease_window import LeaseWindow

MODULE: Final = "benchmarks.paced.room_window"


class RoomWindow(LeaseWindow):
    """A window of S + 1 batches, whatever the draws show."""

    @property
    def batches(self) -> float:
        """See `LeaseWindow.batches`."""
        return self._most

    def room(self, load: InFlight, buffered: int, now: int, *, behind: bool) -> int:
        """See `LeaseWindow.room`; without a bound on groups that wait for verdicts."""
        return self.groups(now, behind=behind) - load.on_their_way(buffered)


Window = RoomWindow
