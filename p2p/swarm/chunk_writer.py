"""Proven chunks on their way to the disk.

1. One task writes, in a worker thread, all that has gathered in one go: where chunks come quickly, few wake the thread.
2. Who brings a chunk waits while more than `ROOM` bytes wait to be written, so that a slow disk holds up the peers.
3. A chunk counts as held, and is told to others, only once it is written.
"""

from collections.abc import Callable

import anyio
import anyio.to_thread

from p2p.swarm.payload_file import PartialPayload

ROOM = 4 << 20

Proven = tuple[int, bytes | memoryview, list[bytes]]
"""Index, data and proof of a chunk."""


class ChunkWriter:
    """What waits to be written, of one payload."""

    def __init__(self, payload: PartialPayload, stored: Callable[[int], None]) -> None:
        """`stored` hears of each chunk that is written and was not here before."""
        self._payload = payload
        self._stored = stored
        self._waiting: list[Proven] = []
        self._nbytes = 0
        """Of what waits or is being written."""
        self._filled, self._emptied = anyio.Event(), anyio.Event()

    async def put(self, index: int, data: bytes | memoryview, proof: list[bytes]) -> None:
        """Have a chunk written; returns when there is room for another."""
        self._waiting.append((index, data, proof))
        self._nbytes += len(data)
        self._filled.set()
        await self._until(ROOM)

    async def empty(self) -> None:
        """Wait until all is written."""
        await self._until(0)

    async def run(self) -> None:
        """Write until cancelled. Raises `LocalNetworkFault` (the disk)."""
        while True:
            await self._filled.wait()
            batch, self._waiting, self._filled = self._waiting, [], anyio.Event()
            for index in await anyio.to_thread.run_sync(self._write, batch):
                self._stored(index)
            self._nbytes -= sum(len(data) for _, data, _ in batch)
            self._emptied.set()
            self._emptied = anyio.Event()

    async def _until(self, nbytes: int) -> None:
        while self._nbytes > nbytes:
            await self._emptied.wait()

    def _write(self, batch: list[Proven]) -> list[int]:
        """The chunks that are new; in a worker thread."""
        return [index for index, data, proof in batch if self._payload.store(index, data, proof)]
