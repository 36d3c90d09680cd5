"""Reads of run.sqlite for the page that no cache answers: one at a time, for a share of the time over all visitors.

Rules
1. A read runs in a thread. After one that took t seconds the next begins t / `share` later, so by `READ_TIME_SHARE`
   reads take at most a sixth of the time.
2. Parties (p2p/limits/party.py) are served in rotation: of each party one request at a time competes with those of
   others.
3. At most `MOST_WAITING` requests wait, `MOST_OF_PARTY` of one party; the last quarter of the places is for parties of
   which no request waits. Further ones are answered 503 with Retry-After; not so one of which a part of the answer is
   sent, as a refusal amid a body would leave its client waiting.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import anyio.to_thread
from aiohttp import web

READ_TIME_SHARE: Final = 0.2
MOST_WAITING: Final = 64
MOST_OF_PARTY: Final = 4
T = TypeVar("T")


class RationedReads:
    """The reads of one kind. `subject`: named in the refusal. `clock`: monotonic seconds. `share`: see rule 1."""

    def __init__(self, subject: str, clock: Callable[[], float], share: float = READ_TIME_SHARE) -> None:
        self._share = share
        self._subject = subject
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._of_party: dict[str, asyncio.Lock] = {}
        self._waiting = Counter[str]()
        self._due = 0.0

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
            async with self._of_party.setdefault(party, asyncio.Lock()), self._one_at_a_time:
                await asyncio.sleep(max(0.0, self._due - self._clock()))
                began = self._clock()
                try:
                    return await anyio.to_thread.run_sync(action)
                finally:
                    ended = self._clock()
                    self._due = ended + (ended - began) / self._share
        finally:
            self._waiting[party] -= 1
            if not self._waiting[party]:
                del self._waiting[party], self._of_party[party]
