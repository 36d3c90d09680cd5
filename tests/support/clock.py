"""A fake clock for asyncio: time stands still while any task can run, and jumps to the next timer when none can.

`run_fake(main)` runs a coroutine function on such a loop, `run_fake_trio(main)` on trio's own fake clock; a test under
`@on_fake_clock` is itself such a coroutine function. Work sent to threads (`anyio.to_thread`) is done inline, so that
a run repeats exactly. A loop with no timer and no runnable task is a deadlock, and raises.
"""

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import anyio.lowlevel
import trio
import trio.testing


class Deadlock(AssertionError):
    """Every task waits, and no timer is set: the test would never end."""


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type,unused-ignore]
    """A selector that never waits: it advances the loop's clock by the time that it would have waited."""

    advance: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("every task waits, and no timer is set")
        self.advance(timeout)
        return ready


class FakeClockLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose `time()` jumps to the next timer once every task waits."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        super().__init__(selector)
        self._now = 1_000_000.0
        self._clock_resolution = 1e-6  # a nanosecond is lost in a float of years, and a timer that is due never fires
        selector.advance = self.advance

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


async def _inline(function: Callable[..., Any], *args: Any, **_: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return function(*args)


def run_fake(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run `main()` to its end on a fresh fake-clock loop; return its result."""

    async def start() -> Any:
        return await main()

    with mock.patch("anyio.to_thread.run_sync", _inline), asyncio.Runner(loop_factory=FakeClockLoop) as runner:
        return runner.run(start())


def run_fake_trio(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run `main()` on trio's fake clock; the order of its tasks is not repeatable."""
    with mock.patch("anyio.to_thread.run_sync", _inline):
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def on_fake_clock(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test of a coroutine function, run by `run_fake`; it takes the same fixtures."""

    @functools.wraps(test)
    def played(**fixtures: Any) -> None:
        run_fake(lambda: test(**fixtures))

    return played
