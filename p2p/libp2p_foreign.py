"""A stream of stock yamux, with the interface of our own (`libp2p_mux.MuxStream`).

Stock yamux fails a write when the reader pauses for 5 s, so a task always reads, up to `READ_AHEAD` bytes ahead of
whoever consumes. Another task writes: whoever sends only queues, so that no write is ever cancelled.
"""

from collections import deque

import trio
from libp2p.abc import INetStream
from libp2p.network.stream.exceptions import StreamEOF

from p2p.mux import Bytes

PIECE = 64 << 10
"""Bytes of one read or write."""
READ_AHEAD = 1 << 20
"""Bytes that are read before anybody asked for them."""


class ForeignStream:
    """Its tasks live in the transport's nursery, and end with the stream."""

    def __init__(self, stream: INetStream, nursery: trio.Nursery) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._queue: deque[Bytes] = deque()
        self._ended = self._finishing = self._finished = False
        self._error: Exception | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self.sent = 0
        nursery.start_soon(self._run)

    async def pieces(self, limit: int) -> list[bytes]:
        """See `MuxStream`."""
        while not self._buffer:
            self._check()
            if self._ended:
                return []
            await self._changed.park()
        found = bytes(self._buffer[:limit])
        del self._buffer[: len(found)]
        self._changed.unpark_all()
        return [found]

    def put(self, data: Bytes) -> None:
        """See `MuxStream`."""
        self._check()
        self._queue.append(data)
        self._changed.unpark_all()

    async def flush(self) -> None:
        """See `MuxStream`."""
        while self._queue or (self._finishing and not self._finished):
            self._check()
            await self._changed.park()
        self._check()

    async def close(self) -> None:
        """See `MuxStream`."""
        self._finishing = True
        self._changed.unpark_all()

    async def reset(self) -> None:
        """See `MuxStream`."""
        self._fail(ConnectionResetError("this side reset the stream"))
        await self._stream.reset()
        self._scope.cancel()

    async def _run(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_always)
                nursery.start_soon(self._write_always)

    async def _read_always(self) -> None:
        try:
            while data := await self._stream.read(PIECE):
                self._buffer += data
                self._changed.unpark_all()
                while len(self._buffer) >= READ_AHEAD:
                    await self._changed.park()
        except StreamEOF:
            pass
        except Exception as error:
            self._fail(error)
        self._ended = True
        self._changed.unpark_all()

    async def _write_always(self) -> None:
        try:
            while self._queue or not self._finishing:
                if not self._queue:
                    await self._changed.park()
                    continue
                data = memoryview(self._queue[0])
                for start in range(0, len(data), PIECE):
                    await self._stream.write(bytes(data[start : start + PIECE]))
                    self.sent += len(data[start : start + PIECE])
                self._queue.popleft()
                self._changed.unpark_all()
            await self._stream.close_write()  # type: ignore[attr-defined]
            self._finished = True
            self._changed.unpark_all()
        except Exception as error:
            self._fail(error)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._changed.unpark_all()
