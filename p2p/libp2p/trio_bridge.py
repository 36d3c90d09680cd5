"""Trio in a thread beside an asyncio loop, and calls in both directions.

1. `TrioThread.run` lasts as long as the thread: it ends when the thread ends, and raises the thread's error. Its
   cancellation cancels trio and waits until the thread has ended. So the thread cannot fail unnoticed, nor outlive its
   owner.
2. `call` runs a coroutine function on trio; `call_back` runs one on asyncio. Results, errors and cancellation cross.
   A cancelled caller waits until the call on the other side has ended.
3. At most `CALLS` calls from trio run in the asyncio loop at once; further ones wait on the trio side.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

import trio

from echo2.p2p.errors import Unreachable
from echo2.p2p.guard import one_error
from echo2.p2p.limits.request_slots import ALL_SLOTS

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLS = ALL_SLOTS
"""Most calls from trio at once. All requests that p2p/limits/request_slots.py admits fit, so none of them waits here.
The daemon decides their order."""


class TrioThread:
    """One trio run in one thread. Construct it in the asyncio loop's thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()
        self._stop = False

    async def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` on trio until it ends or this task is cancelled."""
        ended: asyncio.Future[None] = self._loop.create_future()

        def thread() -> None:
            error: BaseException | None = None
            try:
                trio.run(self._main, main)
            except BaseException as caught:
                error = caught
            self.post(_settle, ended, None, error)

        runner = threading.Thread(target=thread, name=self._name, daemon=True)
        runner.start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._stop = True
            with contextlib.suppress(Unreachable):
                self._on_trio(self._scope.cancel)
            await _wait_until_done(ended)
            raise
        finally:
            runner.join()  # settling the future was its last act

    async def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on trio. Raises the function's errors, and `Unreachable` before trio has started and
        after it has ended."""
        outcome: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()

        async def runner() -> None:
            result, error = None, None
            try:
                with scope:
                    result = await function(*args, **kwargs)
            except trio.Cancelled:
                self.post(_settle, outcome, None, Unreachable("the network has stopped"))
                raise
            except BaseExceptionGroup as group:
                error = _without_cancellation(group)
            except Exception as caught:
                error = caught
            if scope.cancelled_caught:
                self.post(outcome.cancel)
            else:
                self.post(_settle, outcome, result, error)

        self._on_trio(self._start, runner, outcome)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            with contextlib.suppress(Unreachable):
                self._on_trio(scope.cancel)
            await _wait_until_done(outcome)
            raise

    async def call_back(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on asyncio, from trio. Raises the function's errors, and `Unreachable` if asyncio
        cancels the call, as when the daemon stops."""
        async with self._calls:
            done = trio.Event()
            token = trio.lowlevel.current_trio_token()

            async def runner() -> T:
                return await function(*args, **kwargs)

            def finished(_: object) -> None:
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(done.set)

            outcome = asyncio.run_coroutine_threadsafe(runner(), self._loop)
            outcome.add_done_callback(finished)
            try:
                await done.wait()
            except trio.Cancelled:
                outcome.cancel()
                raise
            if outcome.cancelled():
                raise Unreachable("the daemon is stopping")
            return outcome.result()

    def from_trio(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Wrap a coroutine function of asyncio so that trio can call it, through `call_back`."""
        return partial(self.call_back, function)

    async def _main(self, main: Callable[[], Awaitable[None]]) -> None:
        self._calls = trio.CapacityLimiter(CALLS)
        try:
            with one_error(), self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._token = trio.lowlevel.current_trio_token()
                    if self._stop:
                        self._scope.cancel()
                    await main()
                    nursery.cancel_scope.cancel()
        finally:
            self._nursery = None

    def _start(self, runner: Callable[[], Awaitable[None]], outcome: "asyncio.Future[Any]") -> None:
        if self._nursery is None:
            self.post(_settle, outcome, None, Unreachable("the network has stopped"))
        else:
            self._nursery.start_soon(runner)

    def _on_trio(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        try:
            if self._token is None:
                raise Unreachable("the network has not started")
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            raise Unreachable("the network has stopped") from None

    def post(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Schedule a call of `function` in the asyncio loop, from any thread; do not wait for it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no task left to notify
            self._loop.call_soon_threadsafe(function, *args)


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


async def _wait_until_done(future: "asyncio.Future[Any]") -> None:
    """Wait until `future` is done, ignoring its result; a second cancellation does not end the wait."""
    while not future.done():
        with contextlib.suppress(BaseException):
            await asyncio.shield(future)
    if not future.cancelled():
        future.exception()


def _without_cancellation(group: BaseExceptionGroup[BaseException]) -> BaseException:
    rest = group.split(trio.Cancelled)[1]
    return rest if rest is not None else Unreachable("the network has stopped")
