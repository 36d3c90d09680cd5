"""Reads of run.sqlite for the page that no cache answers: one at a time, for a share of the time over all visitors.

Rules
1. One thread reads, and waits for no event loop between two reads. After one that took t seconds of a processor the
   next begins t / `share` later, so by `READ_TIME_SHARE` reads take at most a sixth of a core. One that waited for the
   disk is followed by a pause as long as itself, so reads have the disk for at most half of the time. Time that no read
   used makes up for pauses, `CREDIT_SECONDS` of it at most.
2. Parties (p2p/limits/party.py) are served in rotation: of each party one request at a time competes with those of
   others.
3. At most `MOST_WAITING` requests wait, `MOST_OF_PARTY` of one party; the last quarter of the places is for parties of
   which no request waits. Further ones are answered 503 with Retry-After; not so one of which a part of the answer is
   sent, as a refusal amid a body would leave its client waiting.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from aiohttp import web

READ_TIME_SHARE: Final = 0.2
CREDIT_SECONDS: Final = 0.5
MOST_WAITING: Final = 64
MOST_OF_PARTY: Final = 4
T = TypeVar("T")


class RationedReads:
    """The reads of one kind. `subject`: named in the refusal. `clock`: monotonic seconds. `share`: see rule 1.
    `processor`: CPU seconds of the calling thread."""

    def __init__(
        self,
        subject: str,
        clock: Callable[[], float],
        share: float = READ_TIME_SHARE,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share = share
        self._processor = processor
        self._subject = subject
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "page's reads")
        self._ended = threading.Event()
        self._of_party: dict[str, asyncio.Lock] = {}
        self._waiting = Counter[str]()
        self._due = 0.0

    def end_with(self, app: web.Application) -> None:
        """End the thread with an application: else the process would wait for the pause of rule 1 at its end."""
        app.on_cleanup.append(self._stop)

    async def _stop(self, app: web.Application) -> None:
        self._ended.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def read(self, party: str, action: Callable[[], T], *, begun: bool = False) -> T:
        """Run an action of a request in a thread, in turn. `begun`: whether a part of its answer is sent. Raises
        `HTTPServiceUnavailable` (rule 3)."""
        own, all_waiting = self._waiting[party], self._waiting.total()
        if not begun and (own >= MOST_OF_PARTY or all_waiting >= (MOST_WAITING * 3 // 4 if own else MOST_WAITING)):
            raise web.HTTPServiceUnavailable(
                text=f"too many requests for {self._subject}", headers={"Retry-After": "5"}
            )
        self._waiting[party] += 1
        try:
            async with self._of_party.setdefault(party, asyncio.Lock()):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._thread, self._run_in_time, action)
        finally:
            self._waiting[party] -= 1
            if not self._waiting[party]:
                del self._waiting[party], self._of_party[party]

    def _run_in_time(self, action: Callable[[], T]) -> T:
        """Run an action once it may begin, and note when the next may (rule 1). In the thread."""
        if (wait := self._due - self._clock()) > 0:
            self._ended.wait(wait)
        began, spent = self._clock(), self._processor()
        try:
            return action()
        finally:
            took = self._clock() - began
            pause = max((self._processor() - spent) / self._share, took)
            self._due = max(self._due, began - CREDIT_SECONDS) + took + pause
