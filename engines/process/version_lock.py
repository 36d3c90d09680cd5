"""Many uses of a version at once, or one change of it.

Rules
1. A change begins once the uses begun before it have ended. A use that is requested while a change waits or runs begins
   after it: so a change waits for what is under way, and never longer.
2. Changes are made one at a time, first come, first served.
3. While it is closed, neither begins; those under way end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


class VersionLock:
    """A lock of readers and writers for one event loop."""

    def __init__(self) -> None:
        self._uses = 0
        self._changes: list[object] = []
        """The changes that wait or run, in order."""
        self._changing = False
        self.closed = False
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def change_waits(self) -> bool:
        """Whether a change waits to begin."""
        return len(self._changes) > self._changing

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Use the version together with others."""
        await self._until(lambda: not self._changes and not self.closed)
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self._wake()

    @contextlib.asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Have the version alone."""
        own = object()
        self._changes.append(own)
        began = False
        try:
            await self._until(lambda: not self.closed and not self._uses and self._changes[0] is own)
            self._changing = began = True
            yield
        finally:
            if began:
                self._changing = False
            self._changes.remove(own)
            self._wake()

    def close(self) -> None:
        """Let nothing begin until `open`."""
        self.closed = True

    def open(self) -> None:
        """Let uses and changes begin again."""
        self.closed = False
        self._wake()

    async def wait_until_open(self) -> None:
        await self._until(lambda: not self.closed)

    async def wait_until_unused(self) -> None:
        """Wait until nothing is under way."""
        await self._until(lambda: not self._uses and not self._changing)

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
