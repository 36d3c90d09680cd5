"""The state of a node: running, paused (for a time or until resumed), or finishing.

Rules
1. A node is paused by its owner's word, and while a rule of the owner blocks (node/owner/owner_rules.py). The word is
   above the rules: it is what a paused node states, and it lasts when they end. `resume` ends both.
   a. So is each device by itself (`DeviceRunState`). A device is paused while the node is; `resume` of the node resumes
      all devices.
2. Finishing is final: the node requests no more leases, delivers its submissions, then ends.
"""

import asyncio
import contextlib
import math
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
        self._metered, self.no_fetching = False, ""
        self.devices: list[DeviceRunState] = []
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
    def _is_blocked(self) -> bool:
        return self._by_hand or bool(self._blocking)

    @property
    def rests_until(self) -> int:
        """Return when a pause ends at the earliest, ms, unless the owner resumes."""
        return max(self._now(), (self._until or 0) if self._by_hand else 0, self._blocked_until)

    def pause(self, seconds: float | None) -> None:
        """Pause for `seconds`, or until resumed."""
        self._by_hand, self._until = True, None if seconds is None else self._now() + int(seconds * 1000)
        self._settle()

    def resume(self) -> None:
        """End a pause, also of each device, and override the rules that block."""
        self._end_pause()
        for device in self.devices:
            device.resume()
        self.on_resume()

    def give_way(self, why: str, seconds: float, *, metered: bool = False) -> None:
        """Rest for the reason `why`, for `seconds` at least; an empty one: no rule blocks. `metered`: whether to fetch
        no payloads."""
        self._blocking, self._blocked_until = why, self._now() + int(seconds * 1000) if why else 0
        self._metered = metered
        self._settle()

    def stop_fetching(self, why: str) -> None:
        """Fetch no payloads for the reason `why`, a sentence; an empty one: fetch them."""
        self.no_fetching = why
        self._settle()

    def _end_pause(self) -> None:
        self._by_hand, self._until = False, None
        self._settle()

    def _settle(self) -> None:
        """Tell those who wait whether the node is paused."""
        for event, is_so in (
            (self._paused, self._is_blocked),
            (self._free_line, not self._metered and not self.no_fetching),
        ):
            event.set() if is_so else event.clear()
        self._changed.set()
        self._changed = asyncio.Event()
        for device in self.devices:
            device._settle()

    def _end_due_pause(self) -> float:
        """End a pause whose time is over; return the seconds until that of this one is, infinity: it has no end."""
        if not self._by_hand or self._until is None:
            return math.inf
        left = (self._until - self._now()) / 1000
        if left <= 0:
            self._end_pause()
        return left if left > 0 else math.inf

    def finish(self, why: str) -> None:
        """Begin to finish, for the reason `why`; the first reason is kept."""
        self.why_finishing = self.why_finishing or why
        self._finish.set()

    async def until_resumed(self) -> None:
        """Wait until the owner resumes, or the pause has run out and no rule blocks."""
        while self.paused:
            left = self._end_due_pause()
            if self.paused:
                await self._tick(left)

    async def until_paused(self) -> None:
        """Wait until the node is paused."""
        await self._paused.wait()

    async def until_line_is_free(self) -> None:
        """Wait while the line is one that the owner pays by the byte, and while a cap on its bytes is reached."""
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


class DeviceRunState(NodeRunState):
    """The state of one device of a node (rule 1a)."""

    def __init__(self, node: NodeRunState) -> None:
        self._node = node
        super().__init__(node._now)
        self._finish = node._finish
        node.devices.append(self)

    @property
    def _is_blocked(self) -> bool:
        return super()._is_blocked or self._node._is_blocked

    @property
    def why_paused(self) -> str:
        return self._node.why_paused if self._node.paused else super().why_paused

    @property
    def rests_until(self) -> int:
        return max(super().rests_until, self._node.rests_until)

    @property
    def withheld(self) -> str:
        return self._node.withheld

    @withheld.setter
    def withheld(self, why: str) -> None:
        """Do nothing: the node has one reason for all its devices."""

    def finish(self, why: str) -> None:
        """See `NodeRunState.finish`: no device finishes alone."""
        self._node.finish(why)

    def _end_due_pause(self) -> float:
        return min(super()._end_due_pause(), self._node._end_due_pause())
