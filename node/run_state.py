"""The state of a node: running, paused (for a time or until resumed), or finishing.

Finishing is final: the node requests no more leases, delivers its submissions, then ends.
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
        self._running = asyncio.Event()
        self._paused = asyncio.Event()
        self._finish = asyncio.Event()
        self._running.set()
        self.why_finishing = ""
        self.withheld = ""
        """Why no new lease is requested though the owner paused nothing; empty: there is no such reason."""

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    @property
    def finishing(self) -> bool:
        return self._finish.is_set()

    @property
    def idle(self) -> bool:
        """Whether no new lease is wanted."""
        return self.paused or self.finishing

    @property
    def why_paused(self) -> str:
        if self._until is None:
            return "paused by the owner until `echo2-node resume`"
        return f"paused by the owner for {figure(max(0, self._until - self._now()) / 1000)} s more"

    def pause(self, seconds: float | None) -> None:
        """Pause for `seconds`, or until resumed."""
        self._until = None if seconds is None else self._now() + int(seconds * 1000)
        self._running.clear()
        self._paused.set()

    def resume(self) -> None:
        """End a pause."""
        self._until = None
        self._paused.clear()
        self._running.set()

    def finish(self, why: str) -> None:
        """Begin to finish, for the reason `why`; the first reason is kept."""
        self.why_finishing = self.why_finishing or why
        self._finish.set()

    async def until_resumed(self) -> None:
        """Wait until the owner resumes, or the pause has run out."""
        while self.paused:
            until = self._until
            if until is None:
                await self._tick(3600.0)
            elif self._now() >= until:
                self.resume()
            else:
                await self._tick((until - self._now()) / 1000)

    async def until_paused(self) -> None:
        """Wait until the owner pauses."""
        await self._paused.wait()

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
        """Wait until resumed, for `seconds` and at most an hour."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, 3600.0)):
                await self._running.wait()
