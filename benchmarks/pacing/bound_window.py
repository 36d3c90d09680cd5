"""The rival of the window of leases: a bound of 1 + least latency / step batches, as BBR's rule (Cardwell, 2016) bounds
a connection by its highest rate times its least delay. `python -m benchmarks.pacing --rival` plays it.

The latency is that from a lease to the verdict of the group that completed a batch, the least of the last draws, so it
is measured anew as draws go on.
"""

from collections import deque

from echo2.coordinator.leases.lease_window import REMEMBERED_DRAWS, CompletedBatch, LeaseWindow


class BoundWindow(LeaseWindow):
    """A window by the least latency alone."""

    def __init__(self, staleness: int, batch: int) -> None:
        super().__init__(staleness, batch)
        self._latencies = deque[int](maxlen=REMEMBERED_DRAWS)

    @property
    def batches(self) -> float:
        """See `LeaseWindow.batches`."""
        return min(self._most, 1 + min(self._latencies) / self.step) if self._latencies and self.step else self._most

    def draw(self, batch: CompletedBatch | None, now: int) -> None:
        """See `LeaseWindow.draw`."""
        super().draw(batch, now)
        if batch is not None:
            self._latencies.append(batch.at - batch.leased)
