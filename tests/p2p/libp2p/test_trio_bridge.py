"""Trio beside asyncio: results, errors and cancellation cross; the thread neither fails unnoticed nor outlives its
owner."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel

from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.libp2p.trio_bridge import CALLS, TrioThread


@asynccontextmanager
async def bridge(name: str = "bridge under test"):
    thread = TrioThread(name)
    started = asyncio.Event()

    async def main() -> None:
        thread.post(started.set)
        await trio.sleep_forever()

    task = asyncio.create_task(thread.run(main))
    await started.wait()
    yield thread
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert name not in [thread.name for thread in threading.enumerate() if thread.is_alive()]


async def test_a_call_runs_on_trio_and_returns_its_result():
    async def double(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    async with bridge() as thread:
        assert await asyncio.gather(*(thread.call(double, number) for number in range(50))) == list(range(0, 100, 2))


async def test_an_error_on_trio_is_raised_in_asyncio_and_trio_lives_on():
    async def fail() -> None:
        raise Malformed("no")

    async with bridge() as thread:
        for _ in range(2):
            with pytest.raises(Malformed, match="no"):
                await thread.call(fail)


async def test_a_cancelled_caller_waits_until_its_call_on_trio_has_ended():
    steps: list[str] = []
    begun = asyncio.Event()

    async with bridge() as thread:

        async def slow() -> None:
            thread.post(begun.set)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.05)
                steps.append("let go")

        task = asyncio.create_task(thread.call(slow))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        steps.append("cancelled")
    assert steps == ["let go", "cancelled"]


async def test_a_result_that_races_with_a_cancellation_ends_the_call_once():
    async def quick() -> int:
        return 1

    async with bridge() as thread:
        for delay in range(20):
            task = asyncio.create_task(thread.call(quick))
            await asyncio.sleep(delay * 1e-5)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert await thread.call(quick) == 1


async def test_a_call_back_runs_in_the_asyncio_loop():
    loop = asyncio.get_running_loop()

    async def in_asyncio(number: int) -> int:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        if number < 0:
            raise Malformed("negative")
        return number + 1

    async with bridge() as thread:
        assert await thread.call(thread.call_back, in_asyncio, 1) == 2
        with pytest.raises(Malformed):
            await thread.call(thread.call_back, in_asyncio, -1)


@pytest.mark.slow
async def test_calls_back_at_work_at_once_are_bounded():
    working, most = 0, 0
    full = asyncio.Event()

    async def work() -> None:
        nonlocal working, most
        working += 1
        most = max(most, working)
        if working == CALLS:
            full.set()
        await full.wait()
        await asyncio.sleep(0)  # one too many would come now
        working -= 1

    async with bridge() as thread:

        async def many() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(3 * CALLS):
                    nursery.start_soon(thread.call_back, work)

        await thread.call(many)
    assert most == CALLS


async def test_a_cancelled_call_back_is_cancelled_in_asyncio():
    cancelled = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with bridge() as thread:

        async def impatient() -> None:
            with trio.move_on_after(0.05):
                await thread.call_back(wait)

        await thread.call(impatient)
        async with asyncio.timeout(60):
            await cancelled.wait()


async def test_the_end_of_main_is_the_end_of_run_and_fails_waiting_calls():
    thread = TrioThread("short")
    started, stop = asyncio.Event(), trio.Event()

    async def main() -> None:
        thread.post(started.set)
        await stop.wait()

    async def stop_now() -> None:
        stop.set()

    run = asyncio.create_task(thread.run(main))
    await started.wait()
    waiting = asyncio.create_task(thread.call(trio.sleep_forever))
    await thread.call(stop_now)
    await run
    with pytest.raises(Unreachable):
        await waiting
    with pytest.raises(Unreachable, match="stopped"):
        await thread.call(trio.sleep, 0)


async def test_an_error_of_main_is_an_error_of_run():
    async def main() -> None:
        raise Malformed("main failed")

    with pytest.raises(Malformed, match="main failed"):
        await TrioThread("failing").run(main)


async def test_a_call_before_the_start_is_refused():
    with pytest.raises(Unreachable, match="not started"):
        await TrioThread("idle").call(trio.sleep, 0)


async def test_a_run_cancelled_at_once_leaves_no_thread():
    for _ in range(10):
        task = asyncio.create_task(TrioThread("hasty").run(trio.sleep_forever))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "hasty" not in [thread.name for thread in threading.enumerate()]
