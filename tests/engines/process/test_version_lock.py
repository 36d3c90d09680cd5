"""Many uses at once, or one change; a change that waits lets no use begin."""

import anyio
import anyio.lowlevel
import pytest

from echo2.engines.process.version_lock import VersionLock
from tests.support.clock import on_fake_clock


class Recorder:
    """`log`: what began and ended, in order."""

    def __init__(self) -> None:
        self.lock, self.log = VersionLock(), list[str]()

    async def use(self, name: str, seconds: float) -> None:
        async with self.lock.use():
            await self._spend(name, seconds)

    async def change(self, name: str, seconds: float) -> None:
        async with self.lock.change():
            await self._spend(name, seconds)

    async def _spend(self, name: str, seconds: float) -> None:
        self.log.append(f"{name} begins")
        await anyio.sleep(seconds)
        self.log.append(f"{name} ends")


@on_fake_clock
async def test_uses_overlap_and_a_change_that_waits_stops_later_ones() -> None:
    recorder = Recorder()
    async with anyio.create_task_group() as tasks:
        for name, seconds in (("a", 3.0), ("b", 2.0)):
            tasks.start_soon(recorder.use, name, seconds)
        await anyio.sleep(1.0)
        assert not recorder.lock.change_waits
        tasks.start_soon(recorder.change, "v1", 1.0)
        tasks.start_soon(recorder.change, "v2", 1.0)
        tasks.start_soon(recorder.use, "c", 1.0)
        await anyio.lowlevel.checkpoint()
        assert recorder.lock.change_waits
    assert recorder.log == [
        "a begins", "b begins", "b ends", "a ends", "v1 begins", "v1 ends", "v2 begins", "v2 ends", "c begins",
        "c ends",
    ]  # fmt: skip


@on_fake_clock
async def test_a_change_that_is_cancelled_while_it_waits_lets_the_uses_go_on() -> None:
    recorder = Recorder()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.use, "a", 3.0)
        await anyio.sleep(1.0)
        with anyio.move_on_after(1.0):
            await recorder.change("v1", 1.0)
        began = anyio.current_time()
        await recorder.use("b", 0.0)
        assert anyio.current_time() == began
    assert recorder.log == ["a begins", "b begins", "b ends", "a ends"]


@on_fake_clock
async def test_a_block_that_raises_ends() -> None:
    lock = VersionLock()
    for block in (lock.use, lock.change):
        with pytest.raises(LookupError):
            async with block():
                raise LookupError
    await lock.wait_until_unused()


@on_fake_clock
async def test_a_closed_lock_begins_nothing_and_says_when_all_has_ended() -> None:
    recorder = Recorder()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.use, "a", 2.0)
        await anyio.sleep(1.0)
        recorder.lock.close()
        tasks.start_soon(recorder.use, "b", 1.0)
        tasks.start_soon(recorder.change, "v1", 1.0)
        began = anyio.current_time()
        await recorder.lock.wait_until_unused()
        assert anyio.current_time() - began == pytest.approx(1.0)
        await anyio.sleep(100.0)
        assert recorder.log == ["a begins", "a ends"]
        recorder.lock.open()
        await recorder.lock.wait_until_open()
    assert recorder.log[2:] == ["v1 begins", "v1 ends", "b begins", "b ends"]
