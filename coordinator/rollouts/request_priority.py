"""Which request of a node is answered next, so that a coordinator under too much load still ends what it began.

Rules
1. At most `PER_ITERATION` requests are answered in one iteration of the event loop. Verdicts, ticks and other peers
   have their place in every iteration, however many requests wait.
2. Requests that end work go before requests that begin it (`rank`): submissions, then verdicts and acknowledgements,
   then greetings, then asks for leases. Within one kind the first to come is the first served.
3. While more than `MOST_UNANSWERED` of these requests are unanswered, in this loop or on their way to it, and have been
   for `STANDING`, or more than `BURST` are, an ask for a lease is refused at once, unread: it costs no check of a
   signature, and no new work is begun while what was begun waits.
4. Those that were refused are told to ask again one after the other, `RETRIES` a second, at the soonest after `SOONEST`
   and at the latest after `LATEST` milliseconds: a request that is refused costs nearly as much as one that is
   answered, and a crowd that came back every few seconds would leave no time for the work of the others.
5. In that line a party (p2p/limits/origin.py) has one place. Its further asks come behind it, in a line of
   its own that moves at its share of `RETRIES`: however much one party asks, the line of all grows by one place.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from protocol.methods import LEASE, SEALED

PER_ITERATION: Final = 24
MOST_UNANSWERED: Final = 64
STANDING: Final = 100
"""Milliseconds."""
UNSEEN: Final = 1_000
"""Milliseconds without a request after which nobody knows whether the crowd of before stood until now."""
BURST: Final = 192
RETRIES: Final = 20
STEP: Final = 1_000 // RETRIES
SOONEST: Final = 5_000
LATEST: Final = 60_000
SWEEP: Final = 1_000
"""Milliseconds from one look at places that are over to the next."""
_LAST: Final = LEASE.name
_RANKS: Final = {method.name: method.rank for method in SEALED}


class AdmissionQueue:
    """Use from the event loop's thread."""

    def __init__(self, clock: Callable[[], int], unanswered: Callable[[], int]) -> None:
        """`clock`: milliseconds. `unanswered`: requests for these methods that have come and are not answered, with
        those here. Requests that wait on purpose are none of them."""
        self._clock, self._unanswered = clock, unanswered
        self._last_place = 0
        """When the last place in the line of all parties is over."""
        self._own: dict[str, int] = {}
        """When the last place of a party is over."""
        self._swept = 0
        self._crowded_since: int | None = None
        self._seen = 0
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = tuple(deque() for _ in range(1 + max(_RANKS.values())))
        self._free = PER_ITERATION
        self._armed = False

    async def enter(self, method: str, party: str) -> int | None:
        """Wait until a request of `party` for `method` may be answered. For one that is refused: the milliseconds after
        which it may come again (rules 3 to 5)."""
        loop = asyncio.get_running_loop()
        queue = self._waiting[_RANKS[method]]
        if self._crowded() and method == _LAST:
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

    def _crowded(self) -> bool:
        unanswered, now = self._unanswered(), self._clock()
        seen, self._seen = self._seen, now
        if unanswered <= MOST_UNANSWERED:
            self._crowded_since = None
            return False
        if self._crowded_since is None or not seen <= now <= seen + UNSEEN:  # or the clock was set
            self._crowded_since = now
        return unanswered > BURST or now - self._crowded_since > STANDING

    def _later(self, party: str) -> int:
        """Take the next place of a party that was refused."""
        now = self._clock()
        self._sweep(now)
        if (own := self._own.get(party, 0)) > now:
            at = own + len(self._own) * STEP
        else:
            at = self._last_place = min(max(self._last_place + STEP, now + SOONEST), now + LATEST)
        self._own[party] = min(at, now + LATEST)
        return self._own[party] - now

    def _sweep(self, now: int) -> None:
        """Forget places that are over, and those of a line from before the clock was set back."""
        if self._last_place > now + LATEST:
            self._last_place = 0
        if not self._swept <= now < self._swept + SWEEP:
            self._swept = now
            self._own = {party: at for party, at in self._own.items() if now < at <= now + LATEST}

    def _next(self) -> None:
        """Begin the next iteration's share."""
        self._free = PER_ITERATION
        for queue in self._waiting:
            while queue and self._free:
                ticket = queue.popleft()
                if not ticket.done():  # its asker has not gone away
                    ticket.set_result(None)
                    self._free -= 1
        self._armed = any(self._waiting)
        if self._armed:
            asyncio.get_running_loop().call_soon(self._next)
