"""An event loop that times its callbacks."""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

Given = TypeVarTuple("Given")


class WatchedLoop(asyncio.SelectorEventLoop):
    """An event loop that knows its longest callback: `longest`, seconds by the clock, and `longest_cpu`, CPU seconds of
    its thread. `watching`: whether it does; timing costs some microseconds per callback."""

    def __init__(self, watching: bool) -> None:
        self._watching = watching
        self.longest = self.longest_cpu = 0.0
        super().__init__()

    def _timed(self, callback: Callable[[*Given], object]) -> Callable[[*Given], object]:
        if not self._watching:
            return callback

        def timed(*arguments: *Given) -> None:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                callback(*arguments)
            finally:
                self.longest = max(self.longest, time.perf_counter() - began)
                self.longest_cpu = max(self.longest_cpu, time.thread_time() - cpu)

        return timed

    def call_soon(
        self, callback: Callable[[*Given], object], *arguments: *Given, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio.AbstractEventLoop`."""
        return super().call_soon(self._timed(callback), *arguments, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Given], object], *arguments: *Given, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio.AbstractEventLoop`."""
        return super().call_soon_threadsafe(self._timed(callback), *arguments, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Given], object], *arguments: *Given, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `asyncio.AbstractEventLoop`."""
        return super().call_at(when, self._timed(callback), *arguments, context=context)

    def _add_reader(self, fd: Any, callback: Any, *arguments: Any) -> asyncio.Handle:
        handle: asyncio.Handle = super()._add_reader(fd, self._timed(callback), *arguments)  # type: ignore[misc]
        return handle

    def _add_writer(self, fd: Any, callback: Any, *arguments: Any) -> asyncio.Handle:
        handle: asyncio.Handle = super()._add_writer(fd, self._timed(callback), *arguments)  # type: ignore[misc]
        return handle
