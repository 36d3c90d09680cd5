"""Stock yamux for peers of other projects: its connections bounded, its streams with the interface of `MuxStream`
(p2p/libp2p/muxed_connection.py).

1. Stock yamux fails a write when the reader pauses for 5 s. So a task always reads, up to `READ_AHEAD` bytes ahead of
   the consumer. Another task writes: senders only queue bytes, so that no write is ever cancelled.
2. Stock yamux buffers data sent past its window and accepts any number of streams. Here streams beyond `STREAMS_MAX`
   per connection are reset, and a connection with more than `UNREAD_MAX` unread bytes is closed.
3. What the peer's streams occupy here is told to `on_load`, as by `MuxConn`, also when one ends. A connection that
   gives way is closed.
"""

from collections import deque
from collections.abc import Callable

import trio

from echo2._libp2p.abc import IMuxedStream, INetStream
from echo2._libp2p.network.stream.exceptions import StreamEOF
from echo2._libp2p.stream_muxer.yamux.yamux import Yamux
from echo2._libp2p.stream_muxer.yamux.yamux import YamuxStream as UpstreamStream
from echo2.p2p.guard import guard_handler, log
from echo2.p2p.libp2p.mux import STREAMS_MAX, Bytes
from echo2.p2p.limits.least_rate import Flow

YAMUX_PIECE_BYTES = 64 << 10
"""Most bytes per read or write."""
READ_AHEAD = 1 << 20
AHEAD = "echo2_bytes_ahead"
"""Attribute of upstream's stream: bytes that were read ahead of the consumer, or wait for the rest of their frame."""
UNREAD_MAX = 64 << 20
"""Most unread bytes per connection: the initial windows of 256 streams, or 4 full-grown ones."""


class BoundedYamux(Yamux):
    """Upstream's yamux with bounds on streams and unread bytes (rule 2)."""

    fault: str | None = None
    """The protocol violation of the peer; None without one."""
    on_load: Callable[["BoundedYamux", int, int], None] = staticmethod(lambda conn, streams, nbytes: None)
    """See `MuxConn.on_load`."""

    async def accept_stream(self) -> IMuxedStream:
        while True:
            stream = await super().accept_stream()
            self.count()
            if len(self._of_peer()) <= STREAMS_MAX:
                return stream
            await stream.reset()

    def count(self) -> None:
        """Tell what the peer's streams occupy."""
        opened = self._of_peer()
        unread = sum(len(self.stream_buffers.get(one.stream_id, b"")) + getattr(one, AHEAD, 0) for one in opened)
        self.on_load(self, len(opened), unread)

    def give_way(self) -> None:
        """Close the connection: the host has no room for its streams."""
        self.on_load(self, 0, 0)
        self.on_load = lambda conn, streams, nbytes: None
        trio.lowlevel.spawn_system_task(guard_handler(self.secured_conn.close))

    def _finalize_stream_locked(self, stream: UpstreamStream, *, fully_closed: bool) -> None:
        super()._finalize_stream_locked(stream, fully_closed=fully_closed)
        self.count()

    def _of_peer(self) -> list[UpstreamStream]:
        return [one for one in self.streams.values() if not (one.is_initiator or one.closed)]

    async def _read_data_body(self, length: int) -> bytes:
        unread = sum(map(len, self.stream_buffers.values()))
        if unread + length > UNREAD_MAX:
            self.fault = f"{unread} bytes received and not read, the most is {UNREAD_MAX}"
            log.warning("connection closed: %s: %s", self.peer_id, self.fault)
            raise trio.TooSlowError  # the one error that upstream lets end the connection
        body = await super()._read_data_body(length)
        self.count()
        return body


class YamuxStream:
    """One yamux stream with the interface of `MuxStream`. Its tasks run in the transport's nursery and end with it."""

    room = False

    def __init__(self, stream: INetStream, nursery: trio.Nursery) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._queue: deque[Bytes] = deque()
        self._ended = self._finishing = self._finished = False
        self._error: Exception | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._kept = self.sent = 0
        self.flows = self
        self.received_flow = self.sent_flow = Flow(0, 0.0)
        nursery.start_soon(self._run)

    @property
    def unread(self) -> int:
        return len(self._buffer)

    def keep(self, nbytes: int) -> None:
        self._kept = nbytes
        self._count()

    async def pieces(self, limit: int, least: int = 1) -> list[bytes]:
        """See `MuxStream`. Return as soon as there is one byte; `least` has no effect."""
        while not self._buffer:
            self._check()
            if self._ended:
                return []
            await self._changed.park()
        piece = bytes(self._buffer[:limit])
        del self._buffer[: len(piece)]
        self._count()
        self._changed.unpark_all()
        return [piece]

    def put(self, data: Bytes) -> None:
        self._check()
        self._queue.append(data)
        self._changed.unpark_all()

    async def flush(self) -> None:
        while self._queue or (self._finishing and not self._finished):
            self._check()
            await self._changed.park()
        self._check()

    async def close(self) -> None:
        self._finishing = True
        self._changed.unpark_all()

    async def reset(self) -> None:
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
                self.received_flow = self.received_flow.plus(len(data), trio.current_time())
                self._count()
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
                    self.sent_flow = Flow(self.sent, trio.current_time())
                self._queue.popleft()
                self._changed.unpark_all()
            await self._stream.close_write()  # type: ignore[attr-defined]
            self._finished = True
            self._changed.unpark_all()
        except Exception as error:
            self._fail(error)

    def _count(self) -> None:
        muxed = getattr(self._stream, "muxed_stream", None)
        if muxed is not None:
            setattr(muxed, AHEAD, len(self._buffer) + self._kept)
            if isinstance(muxed.conn, BoundedYamux):
                muxed.conn.count()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._changed.unpark_all()
