"""A limit of CPU time for a piece of code: how busy a machine is makes no difference to it, a wall clock would.

It uses SIGPROF, so it works in the main thread of a process alone. An operation that no signal interrupts is ended by
the environment's own limit.
"""

import signal
from types import FrameType, TracebackType
from typing import Final

_AGAIN_SECONDS: Final = 0.05
"""CPU time after which the limit strikes again, should some code have caught it."""


class OutOfTime(BaseException):
    """A piece of code had all its CPU time. No `Exception`: a library that catches those is ended all the same."""


class cpu_limit:
    """A block that raises `OutOfTime` after a CPU time, in seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._former = signal.signal(signal.SIGPROF, _strike)
        signal.setitimer(signal.ITIMER_PROF, self._seconds, _AGAIN_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while True:
            try:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.signal(signal.SIGPROF, self._former)
                return
            except OutOfTime:  # a last strike on the way out
                continue


def _strike(signal_number: int, frame: FrameType | None) -> None:
    raise OutOfTime
