"""Our muxer as py-libp2p sees it: `p2p.libp2p.mux` with tasks that read, write and listen for signs of life.

1. One task reads the connection, one writes it. Whoever writes to a stream queues bytes and waits for room: a caller
   that is cancelled leaves whole frames behind, and a reader that pauses holds up its own stream alone, for as long
   as it likes.
2. A fault of the peer closes its connection, and only that; the reason is logged and kept in `fault`, and the peer is
   told that it was at fault.
3. Where nothing was heard for `QUIET` seconds the peer is asked for a sign of life; after `PINGS` of them in vain the
   connection is closed.
4. No error leaves `start`: upstream would end the host.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamClosed,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)
from multiaddr import Multiaddr

from p2p.errors import LocalNetworkFault, Malformed
from p2p.libp2p.mux import FAULT, LEAVING, QUANTUM, Bytes, Mux, StreamState
from p2p.libp2p.noise_session import NoiseSession

log = logging.getLogger("p2p")

BATCH_MIN, BATCH = 1 * QUANTUM, 8 * QUANTUM
"""Bytes of one write to the socket, at the beginning and at most."""
PROMPT = 0.02
"""Seconds that a write may take before the next one is smaller: what comes after it waits as long."""
ROOM = 512 << 10
"""Bytes of a stream that may wait to leave before whoever writes waits too."""
QUIET = 15.0
"""Seconds without a byte before a PING."""
PINGS = 4
"""PINGs without a byte in return before the connection is closed."""
FAREWELL = 1.0
"""Seconds for what is queued to leave when this side closes the connection."""
BROKEN = (IOException, RawConnError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class MuxStream(IMuxedStream):
    """One stream."""

    def __init__(self, conn: "MuxConn", flow: StreamState) -> None:
        self.muxed_conn = conn
        self.stream_id = flow.id
        self._conn = conn
        self._flow = flow
        self._least = 1
        """Bytes that a reader waits for."""
        self._readable, self._writable = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()

    @property
    def room(self) -> bool:
        """Whether `flush` would not wait."""
        return self._writable_now()

    @property
    def sent(self) -> int:
        """Bytes that have left; grows while there is progress."""
        return self._flow.sent

    @property
    def unread(self) -> int:
        """Bytes that have come; grows while there is progress."""
        return self._flow.unread

    async def pieces(self, limit: int, least: int = 1) -> list[memoryview]:
        """Up to `limit` bytes; waits for `least`, where the window allows the peer so many. Empty when the other side
        has finished. Raises `MuxedStreamReset`."""
        self._least = min(least, self._flow.window // 2)
        while not self._readable_now():
            await self._readable.park()
        if not self._flow.unread:
            self._check()
            return []
        return self._conn.read(self._flow, limit)

    def put(self, data: Bytes) -> None:
        """Queue bytes, which must not change later. Raises `MuxedStreamReset`, `MuxedStreamClosed`."""
        self._check()
        if self._flow.finishing:
            raise MuxedStreamClosed("written to after its end")
        self._conn.write(self._flow, data)

    async def flush(self) -> None:
        """Wait until there is room for more; after `close`, until all has left. Raises `MuxedStreamReset`."""
        while not self._writable_now():
            await self._writable.park()
        if not self._flow.finished:
            self._check()

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes, one at least. Raises `MuxedStreamEOF`, `MuxedStreamReset`."""
        pieces = await self.pieces(1 << 20 if n is None or n < 0 else n)
        if not pieces and n != 0:
            raise MuxedStreamEOF("the other side has finished")
        return b"".join(pieces)

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self.put(bytes(data))
        await self.flush()

    async def close(self) -> None:
        """No more from this side; reading goes on."""
        self._conn.finish(self._flow)

    async def reset(self) -> None:
        self._conn.reset(self._flow)

    @property
    def is_closed(self) -> bool:
        """Whether nothing moves any more, either way."""
        return self._flow.reset or self._conn.is_closed or (self._flow.ended and self._flow.finished)

    def set_deadline(self, ttl: int) -> NoReturn:
        raise NotImplementedError("use trio's timeouts")

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._conn.get_remote_address()

    async def __aenter__(self) -> "MuxStream":
        return self

    def wake(self) -> None:
        """Something has changed; who waits for it goes on."""
        if self._readable and self._readable_now():
            self._readable.unpark_all()
        if self._writable and self._writable_now():
            self._writable.unpark_all()

    def _readable_now(self) -> bool:
        return self._flow.unread >= self._least or self._flow.ended or self._has_ended

    def _writable_now(self) -> bool:
        flow = self._flow
        return flow.finished or self._has_ended or not (flow.finishing or flow.unsent > ROOM)

    @property
    def _has_ended(self) -> bool:
        return self._flow.reset or self._conn.is_closed

    def _check(self) -> None:
        if self._flow.reset:
            raise MuxedStreamReset("the stream was reset")
        if self._conn.is_closed:
            raise MuxedStreamReset(f"the connection ended: {self._conn.reason}")


class MuxConn(IMuxedConn):
    """One connection, under `p2p.libp2p.mux.PROTOCOL`."""

    def __init__(self, conn: ISecureConn, peer_id: ID) -> None:
        assert isinstance(conn, NoiseSession)
        self.secured_conn = conn
        self.peer_id = peer_id
        self.event_started = trio.Event()
        self.on_close: Callable[[], Awaitable[None]] | None = None
        """Set by upstream; to be called when the connection has ended."""
        self.reason = "this side closed it"
        self.fault: str | None = None
        """The rule of the muxer that the peer broke."""
        self._closed = trio.Event()
        self._mux = Mux(conn.is_initiator)
        self._streams: dict[int, MuxStream] = {}
        self._accepted: deque[MuxStream] = deque()
        self._acceptable, self._writable = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()
        self._left = trio.Event()
        self._heard = trio.current_time()
        self._hearing = trio.lowlevel.ParkingLot()
        self._pings = 0
        self._scope = trio.CancelScope()

    @property
    def is_initiator(self) -> bool:
        return self.secured_conn.is_initiator

    @property
    def is_established(self) -> bool:
        return self.event_started.is_set() and not self.is_closed

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def start(self) -> None:
        """Work until the connection ends."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self.event_started.set()
                    nursery.start_soon(self._write_always)
                    nursery.start_soon(self._listen_for_life)
                    await self._read_always()
                    self._scope.cancel()
        finally:
            await self._end()

    async def open_stream(self) -> IMuxedStream:
        if self.is_closed:
            raise MuxedConnUnavailable(self.reason)
        try:
            stream = self._stream(self._mux.open())
        except LocalNetworkFault as fault:
            raise MuxedStreamError(str(fault)) from None
        self._news()
        return stream

    async def accept_stream(self) -> IMuxedStream:
        while not self._accepted:
            if self.is_closed:
                raise MuxedConnUnavailable(self.reason)
            await self._acceptable.park()
        return self._accepted.popleft()

    async def close(self) -> None:
        """What is queued may leave, and a farewell, for `FAREWELL` seconds."""
        if not self.is_closed:
            self._mux.go_away(LEAVING)
            self._news()
            with trio.move_on_after(FAREWELL):
                await self._left.wait()
        self._scope.cancel()
        await self._end()

    async def alive(self, within: float) -> bool:
        """Whether the other side is heard of within so many seconds; it is asked for a sign of life."""
        self._ping()
        with trio.move_on_after(within) as waiting:
            await self._hearing.park()
        return not waiting.cancelled_caught and not self.is_closed

    def read(self, flow: StreamState, limit: int) -> list[memoryview]:
        """See `Mux.read`."""
        pieces = self._mux.read(flow, limit)
        self._news()
        return pieces

    def write(self, flow: StreamState, data: Bytes) -> None:
        """See `Mux.write`."""
        self._mux.write(flow, data)
        self._news()

    def finish(self, flow: StreamState) -> None:
        """See `Mux.finish`."""
        self._mux.finish(flow)
        self._news()

    def reset(self, flow: StreamState) -> None:
        """See `Mux.reset`."""
        self._mux.reset(flow)
        self._news()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.secured_conn.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        return self.secured_conn.get_connection_type()

    def _stream(self, flow: StreamState) -> MuxStream:
        stream = self._streams[flow.id] = MuxStream(self, flow)
        return stream

    def _news(self) -> None:
        """Wake whoever waits for what the muxer has just changed."""
        mux = self._mux
        while mux.opened:
            self._accepted.append(self._stream(mux.opened.popleft()))
            self._acceptable.unpark()
        while mux.changed:
            flow = mux.changed.pop()
            stream = self._streams.get(flow.id)
            if stream is not None:
                stream.wake()
                if flow.reset or (flow.ended and flow.finished):
                    del self._streams[flow.id]
        if not mux.idle:
            self._writable.unpark_all()

    async def _read_always(self) -> None:
        try:
            while pieces := await self.secured_conn.pieces():
                self._heard = trio.current_time()
                self._hearing.unpark_all()
                for piece in pieces:
                    self._mux.receive(piece)
                self._news()
                if self._mux.away is not None:
                    self.reason = "the other side left" if self._mux.away == LEAVING else "the other side found a fault"
                    return
            self.reason = "the other side closed it"
        except Malformed as fault:
            self.reason = self.fault = str(fault)
            log.warning("connection with %s closed: %s", self.peer_id, fault)
            self._mux.go_away(FAULT)
            self._news()
            with trio.move_on_after(FAREWELL):
                await self._left.wait()
        except BROKEN as error:
            self.reason = f"{error!r}"

    async def _write_always(self) -> None:
        batch = BATCH_MIN
        try:
            while not self._mux.left:
                frames = self._mux.data_to_send(batch)
                self._news()
                if frames:
                    began = trio.current_time()
                    await self.secured_conn.send(*frames)
                    prompt = trio.current_time() - began <= PROMPT
                    batch = min(2 * batch, BATCH) if prompt else max(batch // 2, BATCH_MIN)
                else:
                    await self._writable.park()
            self._left.set()
        except BROKEN as error:
            self.reason = f"{error!r}"
            self._scope.cancel()

    async def _listen_for_life(self) -> None:
        unanswered = 0
        while unanswered < PINGS:  # counted, not timed: this process may have been frozen itself
            heard = self._heard
            await trio.sleep(QUIET)
            if self._heard > heard:
                unanswered = 0
            else:
                unanswered += 1
                self._ping()
        self.reason = f"not heard of for {QUIET * PINGS:g} s"
        self._scope.cancel()

    def _ping(self) -> None:
        self._pings += 1
        self._mux.ping(self._pings)
        self._news()

    async def _end(self) -> None:
        if self.is_closed:
            return
        self._closed.set()
        self._hearing.unpark_all()
        for stream in self._streams.values():
            stream.wake()
        self._acceptable.unpark_all()
        with trio.move_on_after(FAREWELL) as scope:
            scope.shield = True
            try:
                await self.secured_conn.close()
                if self.on_close is not None:
                    await self.on_close()
            except Exception as error:
                log.debug("end of a connection: %r", error)
