"""The state of a node: running, paused (for a time or until resumed), or finishing.

Rules
1. A node is paused by its owner's word, and while a rule of the owner blocks (node/owner/owner_rules.py). The word is
   above the rules: it is what a paused node states, and it lasts when they end. `resume` ends both.
2. Finishing is final: the node requests no more leases, delivers its submissions, then ends.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from echo2.runtime.figures import figure


class NodeRunState:
    """The node's state as the owner, a signal or the end of the run sets it, with waits for its changes. `now`: this
    machine's clock, milliseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._until: int | None = None
        self._by_hand = False
        self._blocking, self._blocked_until = "", 0
        """The rule of the owner that blocks, a sentence, empty: none does; and until when at least, ms."""
        self.on_resume: Callable[[], None] = lambda: None
        """Called when the owner resumes; the rules that block are overridden then."""
        self._metered = False
        self._free_line, self._changed = asyncio.Event(), asyncio.Event()
        self._paused = asyncio.Event()
        self._finish = asyncio.Event()
        self._settle()
        self.why_finishing = ""
        self.withheld = ""
        """Why no new lease is requested though the owner paused nothing; empty: there is no such reason."""

    @property
    def paused(self) -> bool:
        return self._paused.is_set()

    @property
    def finishing(self) -> bool:
        return self._finish.is_set()

    @property
    def idle(self) -> bool:
        """Whether no new lease is wanted."""
        return self.paused or self.finishing

    @property
    def why_paused(self) -> str:
        if not self._by_hand:
            return self._blocking
        if self._until is None:
            return "paused by the owner until `echo2-node resume`"
        return f"paused by the owner for {figure(max(0, self._until - self._now()) / 1000)} s more"

    @property
    def rests_until(self) -> int:
        """Return when a pause ends at the earliest, ms, unless the owner resumes."""
        return max(self._now(), (self._until or 0) if self._by_hand else 0, self._blocked_until)

    def pause(self, seconds: float | None) -> None:
        """Pause for `seconds`, or until resumed."""
        self._by_hand, self._until = True, None if seconds is None else self._now() + int(seconds * 1000)
        self._settle()

    def resume(self) -> None:
        """End a pause, and override the rules that block."""
        self._end_pause()
        self.on_resume()

    def give_way(self, why: str, seconds: float, *, metered: bool = False) -> None:
        """Rest for the reason `why`, for `seconds` at least; an empty one: no rule blocks. `metered`: whether to fetch
        no payloads."""
        self._blocking, self._blocked_until = why, self._now() + int(seconds * 1000) if why else 0
        self._metered = metered
        self._settle()

    def _end_pause(self) -> None:
        self._by_hand, self._until = False, None
        self._settle()

    def _settle(self) -> None:
        """Tell those who wait whether the node is paused."""
        paused = self._by_hand or bool(self._blocking)
        for event, is_so in ((self._paused, paused), (self._free_line, not self._metered)):
            event.set() if is_so else event.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def finish(self, why: str) -> None:
        """Begin to finish, for the reason `why`; the first reason is kept."""
        self.why_finishing = self.why_finishing or why
        self._finish.set()

    async def until_resumed(self) -> None:
        """Wait until the owner resumes, or the pause has run out and no rule blocks."""
        while self.paused:
            until = self._until
            if until is None:
                await self._tick(3600.0)
            elif self._now() >= until:
                self._end_pause()
            else:
                await self._tick((until - self._now()) / 1000)

    async def until_paused(self) -> None:
        """Wait until the node is paused."""
        await self._paused.wait()

    async def until_line_is_free(self) -> None:
        """Wait while the line is one that the owner pays by the byte."""
        await self._free_line.wait()

    async def until_finishing(self) -> None:
        """Wait until the node begins to finish."""
        await self._finish.wait()

    async def unless_finishing(self, wait: Awaitable[object]) -> None:
        """Wait until `wait` is done; cancel it if the node begins to finish first. Raises the errors of `wait`."""
        waiting = asyncio.ensure_future(wait)
        ending = asyncio.ensure_future(self._finish.wait())
        try:
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            for task in (waiting, ending):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _tick(self, seconds: float) -> None:
        """Wait until the pause may have changed, for `seconds` and at most an hour."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, 3600.0)):
                await self._changed.wait()
