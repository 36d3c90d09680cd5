"""An engine of given rate: ECHO2_STAND_INS=engine=benchmarks.paced.paced_host (runtime/stand_ins.py).

It makes `AT_ONCE` groups at a time, each in `GROUP_SECONDS`: a group is generated at once, and answered when so much
time has passed since it began, or since a place became free for it, whichever is later. So an engine makes `AT_ONCE` /
`GROUP_SECONDS` groups per second, however many it has.
"""

import heapq
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from echo2.engines import host
from echo2.engines.engine import EngineRows, SampledTurn
from echo2.engines.messages import GenerateCall, ScoreCall

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
        self._free = [0.0] * int(os.environ.get(AT_ONCE, "1"))
        """Heap of the moments from which each place is free."""

    @property
    def idle(self) -> bool:
        """See `EngineHost.idle`. A group that waits for its time is work."""
        return not self._ready and super().idle

    def begin(self, id: int, body: GenerateCall | ScoreCall) -> None:
        """See `EngineHost.begin`."""
        super().begin(id, body)
        if isinstance(body, GenerateCall):
            self._due[id] = max(self._free[0], time.monotonic()) + self.seconds
            heapq.heapreplace(self._free, self._due[id])

    def cancel(self, id: int) -> None:
        """See `EngineHost.cancel`."""
        super().cancel(id)
        self._due.pop(id, None)
        self._ready.pop(id, None)

    def step(self) -> Iterable[tuple[int, object]]:
        """See `EngineHost.step`."""
        for id, outcome in super().step():
            self._ready[id] = outcome
        if not self._groups:
            time.sleep(_LOOK)
        now = time.monotonic()
        for id in [id for id in self._ready if self._due.get(id, 0.0) <= now]:
            self._due.pop(id, None)
            yield id, self._ready.pop(id)


def main() -> None:
    """Serve the engine's calls until the daemon ends."""
    host.main(PacedHost)
