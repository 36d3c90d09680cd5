"""Write verified chunks to the disk, in batches.

1. One task writes all waiting chunks at once, in a worker thread: at high rates, few batches wake the thread.
2. `put` blocks while more than `UNWRITTEN_BYTES` bytes wait to be written, so that a slow disk slows the peers down.
3. A chunk counts as stored, and is announced to others, only after it was written.
"""

from collections.abc import Callable

import anyio
import anyio.to_thread

from echo2.p2p.swarm.payload_file import PartialPayload

UNWRITTEN_BYTES = 4 << 20

ProvenChunk = tuple[int, bytes | memoryview, list[bytes]]
"""Index, data and proof of a chunk."""


class ChunkWriter:
    """The queue of chunks to write, for one payload."""

    def __init__(self, payload: PartialPayload, stored: Callable[[int], None]) -> None:
        """`stored` is called with the index of each chunk that was written and is new."""
        self._payload = payload
        self._stored = stored
        self._waiting: list[ProvenChunk] = []
        self._nbytes = 0
        """Bytes that are waiting or being written."""
        self._filled = anyio.Event()
        self._emptied = anyio.Event()

    async def put(self, index: int, data: bytes | memoryview, proof: list[bytes]) -> None:
        """Enqueue a chunk; return when there is room for another."""
        self._waiting.append((index, data, proof))
        self._nbytes += len(data)
        self._filled.set()
        await self._wait_below(UNWRITTEN_BYTES)

    async def drain(self) -> None:
        await self._wait_below(0)

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

    async def _wait_below(self, nbytes: int) -> None:
        while self._nbytes > nbytes:
            await self._emptied.wait()

    def _write(self, batch: list[ProvenChunk]) -> list[int]:
        """Write a batch, in a worker thread; return the chunks that are new."""
        return [index for index, data, proof in batch if self._payload.store(index, data, proof)]
