"""An engine of given rate: ECHO2_STAND_INS=engine=benchmarks.paced.paced_host (runtime/stand_ins.py).

A group is generated at once, and answered when `GROUP_SECONDS` have passed since it began or since the answer to the
one before, whichever is later. So an engine makes 1 / `GROUP_SECONDS` groups per second, however many it has.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from echo2.engines import host
from echo2.engines.engine import EngineRows, SampledTurn
from echo2.engines.messages import GenerateCall, ScoreCall

MODULE: Final = "benchmarks.paced.paced_host"
GROUP_SECONDS: Final = "PACED_GROUP_SECONDS"
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
        self._free = 0.0

    @property
    def idle(self) -> bool:
        """See `EngineHost.idle`. A group that waits for its time is work."""
        return not self._ready and super().idle

    def begin(self, id: int, body: GenerateCall | ScoreCall) -> None:
        """See `EngineHost.begin`."""
        super().begin(id, body)
        if isinstance(body, GenerateCall):
            self._free = max(self._free, time.monotonic()) + self.seconds
            self._due[id] = self._free

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
