"""Measure how long this process ran, not counting suspension, by a thread that busy work cannot hold up.

Rules
1. The thread looks at the monotonic clock every `CLOCK_POLL_SECONDS` seconds. The time between two looks counts as
   running time, unless it is `STOP_GAP_SECONDS` seconds or longer.
2. Long work on the event loop, or a slow disk, stops the loop but not the thread: that time counts.
3. A stopped process (SIGSTOP, a frozen container) stops the thread too: the time does not count. The monotonic clock of
   Linux and macOS stands still while the machine is suspended: that time does not count either.

So wall-clock time beyond this time means that the process was suspended, or the clock was set forward.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, Self

CLOCK_POLL_SECONDS: Final = 0.25
STOP_GAP_SECONDS: Final = 4.0
"""Seconds between two looks from which on the process counts as stopped. A call that held the GIL for so long would
look the same; our calls hold it for milliseconds."""


class RunningTime:
    """An instance, when called, returns the seconds that this process ran. `clock`: monotonic seconds. The thread lives
    within `with`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._ran, self._last = 0.0, clock()

    def __call__(self) -> float:
        """Look now, and return the seconds counted so far (rule 1)."""
        with self._lock:
            now = self._clock()
            since, self._last = now - self._last, now
            if since < STOP_GAP_SECONDS:
                self._ran += since
            return self._ran

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="running time", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(CLOCK_POLL_SECONDS):
            self()
