"""Stock yamux for peers of other projects: its connections bounded, its streams with the interface of `MuxStream`
(p2p/libp2p/muxed_connection.py).

1. Stock yamux fails a write when the reader pauses for 5 s. So a task always reads, up to `READ_AHEAD` bytes ahead of
   the consumer. Another task writes: senders only queue bytes, so that no write is ever cancelled.
2. Stock yamux buffers data sent past its window and accepts any number of streams, while the limit on streams is shared
   by all peers of the host. Here streams beyond `STREAMS_MAX` per connection are reset, and a connection with more than
   `UNREAD_MAX` unread bytes is closed.
"""

import logging
from collections import deque

import trio

from echo2._libp2p.abc import IMuxedStream, INetStream
from echo2._libp2p.network.stream.exceptions import StreamEOF
from echo2._libp2p.stream_muxer.yamux.yamux import Yamux
from echo2.p2p.libp2p.mux import STREAMS_MAX, Bytes

log = logging.getLogger("p2p")

YAMUX_PIECE_BYTES = 64 << 10
"""Most bytes per read or write."""
READ_AHEAD = 1 << 20
"""Most bytes per stream that are read before they are consumed."""
UNREAD_MAX = 64 << 20
"""Most unread bytes per connection: the initial windows of 256 streams, or 4 full-grown ones."""


class BoundedYamux(Yamux):
    """Upstream's yamux with bounds on streams and unread bytes (rule 2)."""

    fault: str | None = None
    """The protocol violation of the peer; None without one."""

    async def accept_stream(self) -> IMuxedStream:
        while True:
            stream = await super().accept_stream()
            if sum(not (one.is_initiator or one.closed) for one in self.streams.values()) <= STREAMS_MAX:
                return stream
            await stream.reset()

    async def _read_data_body(self, length: int) -> bytes:
        unread = sum(map(len, self.stream_buffers.values()))
        if unread + length > UNREAD_MAX:
            self.fault = f"{unread} bytes received and not read, the most is {UNREAD_MAX}"
            log.warning("connection closed: %s: %s", self.peer_id, self.fault)
            raise trio.TooSlowError  # the one error that upstream lets end the connection
        return await super()._read_data_body(length)


class YamuxStream:
    """One yamux stream with the interface of `MuxStream`. Its tasks run in the transport's nursery and end with it."""

    def __init__(self, stream: INetStream, nursery: trio.Nursery) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._queue: deque[Bytes] = deque()
        self._ended = False
        self._finishing = False
        self._finished = False
        self._error: Exception | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self.sent = 0
        nursery.start_soon(self._run)

    @property
    def unread(self) -> int:
        """See `MuxStream`."""
        return len(self._buffer)

    @property
    def room(self) -> bool:
        """See `MuxStream`."""
        return False

    async def pieces(self, limit: int, least: int = 1) -> list[bytes]:
        """See `MuxStream`. Return as soon as there is one byte; `least` has no effect."""
        while not self._buffer:
            self._check()
            if self._ended:
                return []
            await self._changed.park()
        piece = bytes(self._buffer[:limit])
        del self._buffer[: len(piece)]
        self._changed.unpark_all()
        return [piece]

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
            while data := await self._stream.read(YAMUX_PIECE_BYTES):
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
                for start in range(0, len(data), YAMUX_PIECE_BYTES):
                    await self._stream.write(bytes(data[start : start + YAMUX_PIECE_BYTES]))
                    self.sent += len(data[start : start + YAMUX_PIECE_BYTES])
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
