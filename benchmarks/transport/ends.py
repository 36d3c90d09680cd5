"""A candidate of `benchmarks.transport` in two processes: a holder, which sends chunks, and a taker, which receives
them.

Both processes run for all rounds. In a round the taker is told how many chunks to take, and reports the duration. The
cost is the CPU time of both processes in between.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Literal

import anyio
import anyio.to_thread

CHUNK = 1 << 20
"""Bytes of a chunk, the largest that a payload may have."""
CHUNK_BYTES = Random(0).randbytes(CHUNK)
LOOPBACK = "127.0.0.1"
SENT = "sent"
"""The name of the file that is sent."""
TAKEN = "taken"
"""The name of the folder for received chunks."""

Say = Callable[[object], None]
"""Tells the benchmark where the holder can be reached."""


async def nothing() -> None:
    """Do nothing: this candidate keeps no state between rounds."""


@dataclass(frozen=True)
class Taker:
    """The actions of a connected taker."""

    take: Callable[[int], Awaitable[None]]
    """Takes this number of chunks."""
    clear: Callable[[], Awaitable[None]] = nothing
    """Drops the chunks of a round, outside the measured time."""


def chunk(index: int) -> bytes:
    """Return chunk `index` of the sent file. No two chunks are equal."""
    return index.to_bytes(8, "big") + CHUNK_BYTES[8:]


def write_chunks(folder: Path, chunks: int) -> None:
    """Write the file that is sent, of `chunks` chunks."""
    with (folder / SENT).open("wb") as file:
        file.writelines(map(chunk, range(chunks)))


@dataclass(frozen=True)
class Ends:
    """The functions of a candidate. They run in separate processes, so they are module-level."""

    hold: Callable[[Say, Path, int], Awaitable[None]]
    """Takes a callback for its address, the folder for files, and the chunks per round; serves until cancelled."""
    take: Callable[[Any, Path, int], AbstractAsyncContextManager[Taker]]
    """Takes the holder's address, the folder, and the chunks per round; gives a connected taker."""
    loop: Literal["asyncio", "trio"]


@dataclass(frozen=True)
class TransferTurn:
    """One round: `nbytes` bytes of chunks, seconds by the clock, and CPU seconds of the two processes."""

    nbytes: int
    wall: float
    holder_cpu: float
    taker_cpu: float

    def speed(self) -> float:
        """Return MB/s."""
        return self.nbytes / 1e6 / self.wall

    def cost(self) -> float:
        """Return the CPU seconds of both processes per GB."""
        return (self.holder_cpu + self.taker_cpu) / self.nbytes * 1e9


@contextmanager
def running(ends: Ends, folder: Path, chunks: int) -> Iterator[Callable[[], TransferTurn]]:
    """Start both processes; yield the function that runs one round."""
    fresh = multiprocessing.get_context("spawn")
    holder, its_holder = fresh.Pipe()
    taker, its_taker = fresh.Pipe()
    sending = fresh.Process(target=_hold, args=(its_holder, ends, folder, chunks), daemon=True)
    sending.start()
    its_holder.close()
    receiving = fresh.Process(target=_take, args=(its_taker, ends, holder.recv(), folder, chunks), daemon=True)
    receiving.start()
    its_taker.close()
    taker.recv()

    def run_once() -> TransferTurn:
        holder.send(True)
        before = holder.recv()
        taker.send(chunks)
        wall, taken = taker.recv()
        holder.send(True)
        return TransferTurn(chunks * CHUNK, wall, holder.recv() - before, taken)

    try:
        yield run_once
    finally:
        for process in (receiving, sending):
            process.terminate()
            process.join()


def _hold(pipe: Connection, ends: Ends, folder: Path, chunks: int) -> None:
    def report() -> None:
        try:
            while pipe.recv():
                pipe.send(time.process_time())
        except EOFError:
            os._exit(0)

    def say(where: object) -> None:
        pipe.send(where)
        threading.Thread(target=report, daemon=True).start()

    anyio.run(ends.hold, say, folder, chunks, backend=ends.loop)


def _take(pipe: Connection, ends: Ends, where: object, folder: Path, chunks: int) -> None:
    async def main() -> None:
        async with ends.take(where, folder, chunks) as taker:
            pipe.send("ready")
            while True:
                # In a thread: the connection must be able to answer while this end waits for its round.
                count = await anyio.to_thread.run_sync(pipe.recv)
                wall, cpu = time.perf_counter(), time.process_time()
                await taker.take(count)
                cost = time.perf_counter() - wall, time.process_time() - cpu
                await taker.clear()
                pipe.send(cost)

    try:
        anyio.run(main, backend=ends.loop)
    except* EOFError:
        os._exit(0)
