"""Verified chunks on their way to the disk."""

import threading

import anyio
import pytest

from echo2.p2p.errors import LocalNetworkFault
from echo2.p2p.swarm import chunk_writer
from echo2.p2p.swarm.chunk_writer import ChunkWriter

pytestmark = pytest.mark.anyio


class Disk:
    """A payload that stores each chunk after a permit, and records what it stored."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.stored: list[int] = []

    def store(self, index: int, data: bytes, proof: list[bytes]) -> bool:
        assert self.may.acquire(timeout=60)
        if data == b"full":
            raise LocalNetworkFault("no space left")
        self.stored.append(index)
        return data != b"known"


async def test_chunks_are_written_in_order_and_announced_once_they_are_written():
    disk, told = Disk(), []
    kept = ChunkWriter(disk, told.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.run)
        for index in range(3):
            await kept.put(index, b"known" if index == 1 else b"chunk", [])
        assert told == []
        disk.may.release(3)
        await kept.drain()
        assert (disk.stored, told) == ([0, 1, 2], [0, 2])
        tasks.cancel_scope.cancel()


async def test_a_put_beyond_the_room_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(chunk_writer, "UNWRITTEN_BYTES", 10)
    disk, brought, finished = Disk(), [], anyio.Event()
    kept = ChunkWriter(disk, lambda _: None)

    async def bring() -> None:
        for index in range(4):
            await kept.put(index, bytes(5), [])
            brought.append(index)
        finished.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.run)
        tasks.start_soon(bring)
        await anyio.wait_all_tasks_blocked()
        assert brought == [0, 1]
        disk.may.release(4)
        await finished.wait()
        await kept.drain()
        assert disk.stored == [0, 1, 2, 3]
        tasks.cancel_scope.cancel()


async def test_a_full_disk_ends_the_writer_with_its_fault():
    disk = Disk()
    disk.may.release(1)
    kept = ChunkWriter(disk, lambda _: None)
    await kept.put(0, b"full", [])
    with pytest.raises(LocalNetworkFault, match="no space"):
        await kept.run()
