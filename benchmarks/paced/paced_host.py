"""An engine of given rate: ECHO2_STAND_INS=engine=benchmarks.paced.paced_host (runtime/stand_ins.py).

It makes `AT_ONCE` groups at a time, each in `GROUP_SECONDS`: a group is generated at once, and answered when so much
time has passed since it began, or since a place became free for it, whichever is later. So an engine makes `AT_ONCE` /
`GROUP_SECONDS` groups per second, however many it has. It tells of the rows of its places, as an engine of the product
tells of its own.
"""

import heapq
import os
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from echo2.engines.engine import EngineRows, SampledTurn
from echo2.engines.process import host
from echo2.engines.process.messages import GenerateCall, ScoreCall

MODULE: Final = "benchmarks.paced.paced_host"
GROUP_SECONDS: Final = "PACED_GROUP_SECONDS"
AT_ONCE: Final = "PACED_AT_ONCE"
_LOOK: Final = 0.01
"""Seconds between two looks for a group whose time has come."""


class PacedHost(host.EngineHost):
    """An engine host whose generated groups wait. `seconds`: of a group."""

    def __init__(
        self,
        notify: Callable[[EngineRows], None],
        sampled: Callable[[SampledTurn], None],
        confine: Callable[[str], str] = lambda engine: "",
    ) -> None:
        super().__init__(notify, sampled, confine)
        self.seconds = float(os.environ[GROUP_SECONDS])
        self._due: dict[int, float] = {}
        self._ready: dict[int, object] = {}
        self._places = int(os.environ.get(AT_ONCE, "1"))
        self._free = [0.0] * self._places
        """Heap of the moments from which each place is free."""
        self._group = 1
        """Rows of a group."""

    @property
    def rows(self) -> EngineRows:
        """See `EngineHost.rows`."""
        running = min(len(self._due), self._places)
        waiting = len(self._due) - running
        return EngineRows(
            running=running * self._group, waiting=waiting * self._group, limit=self._places * self._group
        )

    @property
    def under_way(self) -> Collection[int]:
        """See `EngineHost.under_way`. A group that waits for its time is under way."""
        return self._due.keys()

    @property
    def idle(self) -> bool:
        """See `EngineHost.idle`. A group that waits for its time is work."""
        return not self._ready and super().idle

    def begin(self, id: int, body: GenerateCall | ScoreCall) -> None:
        """See `EngineHost.begin`."""
        if isinstance(body, GenerateCall):
            self._group = len(body.job.seeds)
            self._due[id] = max(self._free[0], time.monotonic()) + self.seconds
            heapq.heapreplace(self._free, self._due[id])
        super().begin(id, body)

    def cancel(self, id: int) -> None:
        """See `EngineHost.cancel`."""
        self._due.pop(id, None)
        self._ready.pop(id, None)
        super().cancel(id)

    def step(self) -> Iterable[tuple[int, object]]:
        """See `EngineHost.step`."""
        for id, outcome in super().step():
            self._ready[id] = outcome
        if not self._groups:
            time.sleep(_LOOK)
        now = time.monotonic()
        for id in [id for id in self._ready if self._due.get(id, 0.0) <= now]:
            self._due.pop(id, None)
            self._tell()
            yield id, self._ready.pop(id)


def main() -> None:
    """Serve the engine's calls until the daemon ends."""
    host.main(PacedHost)
