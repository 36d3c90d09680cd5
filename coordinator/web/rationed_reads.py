"""Reads of run.sqlite for the page that no cache answers: one at a time, for a share of the time over all visitors.

Rules
1. A read runs in a thread. After one that took t seconds the next begins t / `READ_TIME_SHARE` later, so reads take at
   most a sixth of the time.
2. At most `MOST_WAITING` requests wait; further ones are answered 503 with Retry-After.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import anyio.to_thread
from aiohttp import web

READ_TIME_SHARE: Final = 0.2
MOST_WAITING: Final = 16
T = TypeVar("T")


class RationedReads:
    """The reads of one kind. `subject`: named in the refusal. `clock`: monotonic seconds."""

    def __init__(self, subject: str, clock: Callable[[], float]) -> None:
        self._subject = subject
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._due = 0.0

    async def read(self, action: Callable[[], T]) -> T:
        """Run an action in a thread, in turn. Raises `HTTPServiceUnavailable`."""
        if self._waiting >= MOST_WAITING:
            raise web.HTTPServiceUnavailable(
                text=f"too many requests for {self._subject}", headers={"Retry-After": "5"}
            )
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                await asyncio.sleep(max(0.0, self._due - self._clock()))
                began = self._clock()
                try:
                    return await anyio.to_thread.run_sync(action)
                finally:
                    ended = self._clock()
                    self._due = ended + (ended - began) / READ_TIME_SHARE
        finally:
            self._waiting -= 1
