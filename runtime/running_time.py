"""Measure how long this process ran, by a second thread, so that busy work is not taken for absence.

Rules
1. The thread looks at the monotonic clock every `EVERY` seconds. What lies between two looks counts as time in which
   the process ran, unless it is longer than `GAP`.
2. An event loop that its own work holds, or a slow disk, stops the loop and not the thread: the time counts.
3. A stopped process (SIGSTOP, a frozen container) stops the thread too: the time does not count. Of a suspended machine
   the monotonic clock of Linux and macOS knows nothing: the time does not count either.

So what a wall clock shows beyond this time is absence, or a clock that was set forward.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, Self

EVERY: Final = 0.25
GAP: Final = 4.0
"""Seconds between two looks from which on the process was stopped. A call that keeps the interpreter's lock for so long
would look alike; ours keep it for milliseconds."""


class RunningTime:
    """Call it for the seconds that this process ran. `clock`: monotonic seconds. The thread lives within `with`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._ran, self._last = 0.0, clock()

    def __call__(self) -> float:
        """Look now, and return the seconds counted so far (rule 1)."""
        with self._lock:
            now = self._clock()
            since, self._last = now - self._last, now
            if since < GAP:
                self._ran += since
            return self._ran

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="running time", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY):
            self()
