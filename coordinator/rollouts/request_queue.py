"""Which request of a node is answered next, so that a coordinator under too much load still ends what it began.

Rules
1. At most `PER_ITERATION` requests are answered in one iteration of the event loop. Verdicts, ticks and other peers
   have their place in every iteration, however many requests wait.
2. Requests that end work go before requests that begin it: submissions, then verdicts and acknowledgements, then
   greetings, then asks for leases. Within one kind the first to come is the first served.
3. Of the asks for leases at most `MOST_ASKS` wait. Another is refused at once, unread: it costs no check of a
   signature, and the node asks again later.
"""

import asyncio
from collections import deque
from typing import Final

PER_ITERATION: Final = 24
MOST_ASKS: Final = 128
_LAST: Final = "lease"
_ORDER: Final = (("submit",), ("verdicts", "acknowledge"), ("hello",), (_LAST,))
_RANKS: Final = {method: rank for rank, methods in enumerate(_ORDER) for method in methods}


class RequestQueue:
    """Use from the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = tuple(deque() for _ in _ORDER)
        self._free = PER_ITERATION
        self._armed = False

    async def enter(self, method: str) -> bool:
        """Wait until a request for `method` may be answered; False where it is refused (rule 3)."""
        loop = asyncio.get_running_loop()
        queue = self._waiting[_RANKS[method]]
        if method == _LAST and len(queue) >= MOST_ASKS:
            return False
        if not self._armed:
            self._armed = True
            loop.call_soon(self._next)
        if self._free and not any(self._waiting):
            self._free -= 1
            return True
        ticket = loop.create_future()
        queue.append(ticket)
        await ticket
        return True

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
