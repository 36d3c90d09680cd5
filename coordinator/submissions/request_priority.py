"""Priority queue of requests: an overloaded coordinator completes work before it starts new work.

Rules
1. At most `PER_ITERATION` requests are answered per iteration of the event loop. Verdicts, ticks and other peers run in
   every iteration, however many requests wait.
2. Requests that complete work go before requests that start it (`rank`): submissions, then verdicts and
   acknowledgements, then hellos, then lease requests. Within one kind the order is that of arrival.
3. The coordinator is *overloaded* while more than `BURST_REQUESTS` of these requests are unanswered, or once their
   number has been above `MOST_UNANSWERED` for `STANDING_OVERLOAD_MS`. Requests on their way to this loop count. A lease
   request is then refused at once and unread: this costs no check of a signature, and starts no new work.
4. Refused nodes are told to retry one after the other, `RETRIES_PER_SECOND` per second, after `SOONEST_RETRY_MS` to
   `LATEST_RETRY_MS` milliseconds. A refused request costs nearly as much as an answered one: retries every few seconds
   would leave no time for work.
5. A party (p2p/limits/origin.py) has one place in the order of retries. Its further requests queue behind that place at
   the party's share of `RETRIES_PER_SECOND`. However many requests one party makes, the wait of the others grows by one
   place.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from echo2.protocol.methods import LEASE, SEALED

PER_ITERATION: Final = 24
MOST_UNANSWERED: Final = 64
STANDING_OVERLOAD_MS: Final = 100
"""Milliseconds."""
OVERLOAD_MEMORY_MS: Final = 1_000
"""Milliseconds without a request after which an earlier overload no longer counts as standing."""
BURST_REQUESTS: Final = 192
RETRIES_PER_SECOND: Final = 20
RETRY_STEP_MS: Final = 1_000 // RETRIES_PER_SECOND
SOONEST_RETRY_MS: Final = 5_000
LATEST_RETRY_MS: Final = 60_000
PLACE_SWEEP_MS: Final = 1_000
"""Milliseconds between two removals of places that have passed."""
_RANKS: Final = {method.name: method.rank for method in SEALED}


class AdmissionQueue:
    """The queue that lets requests in by priority. Use from the event loop's thread."""

    def __init__(self, clock: Callable[[], int], unanswered: Callable[[], int]) -> None:
        """Start with an empty queue. `clock`: milliseconds. `unanswered`: counts the requests for these methods that
        arrived and are not answered, including those in this queue, but not requests that wait on purpose."""
        self._clock = clock
        self._unanswered = unanswered
        self._last_place = 0
        """Due time of the last retry in the order of all parties."""
        self._own: dict[str, int] = {}
        """Due time of a party's last retry."""
        self._swept = 0
        self._crowded_since: int | None = None
        self._seen = 0
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = tuple(deque() for _ in range(1 + max(_RANKS.values())))
        self._free = PER_ITERATION
        self._armed = False

    async def enter(self, method: str, party: str) -> int | None:
        """Wait until a request of `party` for `method` may be answered, and return None. Return the milliseconds after
        which to retry if it is refused (rules 3 to 5)."""
        loop = asyncio.get_running_loop()
        queue = self._waiting[_RANKS[method]]
        if self._is_crowded() and method == LEASE.name:
            return self._later(party)
        if not self._armed:
            self._armed = True
            loop.call_soon(self._next)
        if self._free and not any(self._waiting):
            self._free -= 1
            return None
        ticket = loop.create_future()
        queue.append(ticket)
        await ticket
        return None

    def _is_crowded(self) -> bool:
        unanswered, now = self._unanswered(), self._clock()
        seen, self._seen = self._seen, now
        if unanswered <= MOST_UNANSWERED:
            self._crowded_since = None
            return False
        if self._crowded_since is None or not seen <= now <= seen + OVERLOAD_MEMORY_MS:  # or the clock was set
            self._crowded_since = now
        return unanswered > BURST_REQUESTS or now - self._crowded_since > STANDING_OVERLOAD_MS

    def _later(self, party: str) -> int:
        """Assign a refused party its next retry; return the milliseconds until then."""
        now = self._clock()
        self._sweep(now)
        if (own := self._own.get(party, 0)) > now:
            at = own + len(self._own) * RETRY_STEP_MS
        else:
            at = self._last_place = min(
                max(self._last_place + RETRY_STEP_MS, now + SOONEST_RETRY_MS), now + LATEST_RETRY_MS
            )
        self._own[party] = min(at, now + LATEST_RETRY_MS)
        return self._own[party] - now

    def _sweep(self, now: int) -> None:
        """Drop retries that have passed, and those from before the clock was set back."""
        if self._last_place > now + LATEST_RETRY_MS:
            self._last_place = 0
        if not self._swept <= now < self._swept + PLACE_SWEEP_MS:
            self._swept = now
            self._own = {party: at for party, at in self._own.items() if now < at <= now + LATEST_RETRY_MS}

    def _next(self) -> None:
        """Let in the requests of the next iteration."""
        self._free = PER_ITERATION
        for queue in self._waiting:
            while queue and self._free:
                ticket = queue.popleft()
                if not ticket.done():  # a cancelled request takes no place
                    ticket.set_result(None)
                    self._free -= 1
        self._armed = any(self._waiting)
        if self._armed:
            asyncio.get_running_loop().call_soon(self._next)
