"""Our muxer behind py-libp2p's interface: `p2p.libp2p.mux` with tasks for reading, writing and keepalive.

1. One task reads the connection, one writes it. A stream's writer queues bytes and waits for room. So a cancelled
   writer leaves whole frames behind, and a paused reader blocks its own stream alone, for any time.
2. A protocol violation of the peer closes its connection, and only that one. The reason is logged and stored in
   `fault`, and the peer is notified (GOAWAY).
3. After each `PING_AFTER_SECONDS` seconds without a byte from the peer, the peer is pinged; after `PINGS` such periods
   in a row, the connection is closed.
4. No error leaves `start`: upstream would end the host.
5. What the peer's streams occupy here is told to `on_load` before a handler learns of a new stream. Where the host has
   no room for it (p2p/libp2p/connection_gater.py), `give_way` resets the fullest stream of a connection.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn, cast

import trio

from echo2._libp2p.abc import IMuxedConn, IMuxedStream, ISecureConn
from echo2._libp2p.connection_types import ConnectionType
from echo2._libp2p.io.exceptions import IOException
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.network.connection.exceptions import RawConnError
from echo2._libp2p.peer.id import ID
from echo2._libp2p.security.secure_session import SecureSession
from echo2._libp2p.stream_muxer import exceptions
from echo2.p2p.errors import LocalNetworkFault, Malformed
from echo2.p2p.guard import log
from echo2.p2p.libp2p.mux import FAULT, LEAVING, QUANTUM, Bytes, Mux, StreamState
from echo2.p2p.libp2p.noise_session import BatchedTransport

BATCH_MIN, BATCH = 1 * QUANTUM, 8 * QUANTUM
"""Bytes per write to the socket, initially and at most."""
PROMPT_WRITE_SECONDS = 0.02
"""Seconds. After a write that took at most this long, the next one may be twice as large; after a slower one, half as
large, since frames queued behind a write wait as long."""
UNSENT_STREAM_BYTES = 512 << 10
"""Unsent bytes of a stream beyond which its writer waits."""
PING_AFTER_SECONDS = 15.0
PINGS = 4
LOAD_STEP = 4096
"""Bytes that wait for the rest of a request, and are told together: a small request is told by its stream alone."""
FAREWELL_SECONDS = 1.0
"""Seconds for queued frames to leave when this side closes the connection."""
BROKEN_CONNECTION_ERRORS = (IOException, RawConnError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class MuxStream(StreamState, IMuxedStream):
    """One stream of a `MuxConn`, and its state in the muxer."""

    def __init__(self, conn: "MuxConn", id: int) -> None:
        super().__init__(id)
        self.muxed_conn = conn
        self.stream_id = id
        self._conn, self._mux = conn, conn.mux
        self.flows = conn.transport.raw
        """The bytes that the stream's connection has moved in each direction."""
        self._least = 1
        """Unread bytes that the reader waits for."""
        self._readable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()

    @property
    def room(self) -> bool:
        """Whether `flush` would return at once."""
        return self.finished or self._has_ended or not (self.finishing or self.unsent > UNSENT_STREAM_BYTES)

    def keep(self, nbytes: int) -> None:
        """Note that the reader keeps `nbytes` of a frame whose rest has not come."""
        self._mux.keep(self, nbytes)
        self._conn.notify()

    def narrow(self, nbytes: int) -> None:
        """Let the peer send at most `nbytes` ahead of the reader; at least `WINDOW_MIN`."""
        self.most_window = nbytes

    async def pieces(self, limit: int, least: int = 1) -> list[memoryview]:
        """Return up to `limit` bytes; wait for `least`, or for half the window if that is smaller. Return none when the
        other side has finished. Raises `MuxedStreamReset`."""
        self._least = min(least, self.window // 2)
        while not self._readable_now():
            await self._readable.park()
        if not self.unread:
            self._check()
            return []
        pieces = self._mux.read(self, limit)
        self._conn.notify()
        return pieces

    def put(self, data: Bytes) -> None:
        """Queue bytes for sending; they must not change later. Raises `MuxedStreamReset`, `MuxedStreamClosed`."""
        self._check()
        if self.finishing:
            raise exceptions.MuxedStreamClosed("written to after its end")
        self._mux.write(self, data)
        self._conn.notify()

    async def flush(self) -> None:
        """Wait until there is room for more; after `close`, until all is sent. Raises `MuxedStreamReset`."""
        while not self.room:
            await self._writable.park()
        if not self.finished:
            self._check()

    async def read(self, n: int | None = None) -> bytes:
        """Return 1 to `n` bytes. Raises `MuxedStreamEOF`, `MuxedStreamReset`."""
        pieces = await self.pieces(1 << 20 if n is None or n < 0 else n)
        if not pieces and n != 0:
            raise exceptions.MuxedStreamEOF("the other side has finished")
        return b"".join(pieces)

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self.put(bytes(data))
        await self.flush()

    async def close(self) -> None:
        """End the sending direction; reading goes on."""
        self._mux.finish(self)
        self._conn.notify()

    async def reset(self) -> None:
        self._mux.reset(self)
        self._conn.notify()

    @property
    def is_closed(self) -> bool:
        """Whether both directions have ended."""
        return self.aborted or self._conn.is_closed or (self.ended and self.finished)

    def set_deadline(self, ttl: int) -> NoReturn:
        raise NotImplementedError("use trio's timeouts")

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._conn.get_remote_address()

    async def __aenter__(self) -> "MuxStream":
        return self

    def wake(self) -> None:
        """Wake the waiting reader and writer if their condition holds now."""
        if self._readable and self._readable_now():
            self._readable.unpark_all()
        if self._writable and self.room:
            self._writable.unpark_all()

    def _readable_now(self) -> bool:
        return self.unread >= self._least or self.ended or self._has_ended

    @property
    def _has_ended(self) -> bool:
        return self.aborted or self._conn.is_closed

    def _check(self) -> None:
        if self.aborted:
            raise exceptions.MuxedStreamReset("the stream was reset")
        if self._conn.is_closed:
            raise exceptions.MuxedStreamReset(f"the connection ended: {self._conn.reason}")


class MuxConn(IMuxedConn):
    """One connection that speaks `p2p.libp2p.mux.PROTOCOL`."""

    def __init__(self, conn: ISecureConn, peer_id: ID) -> None:
        assert isinstance(conn, SecureSession)
        assert isinstance(conn.conn, BatchedTransport)
        self.secured_conn, self.transport = conn, conn.conn
        self.peer_id = peer_id
        self.event_started = trio.Event()
        self.on_close: Callable[[], Awaitable[None]] | None = None
        """Set by upstream; called when the connection has ended."""
        self.reason = "this side closed it"
        self.fault: str | None = None
        """The protocol violation of the peer; None without one."""
        self.on_load: Callable[[MuxConn, int, int], None] = lambda conn, streams, nbytes: None
        """Called with the streams that the peer has opened, and their bytes, when their number or a `LOAD_STEP` of
        the bytes has changed (rule 5)."""
        self._load = 0, 0
        self._closed = trio.Event()
        self.mux = Mux(conn.is_initiator, partial(MuxStream, self))
        """The state of the connection and its streams; `notify` follows each change of it."""
        self._acceptable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()
        self._left = trio.Event()
        self._last_received = trio.current_time()
        self._received = trio.lowlevel.ParkingLot()
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
        """Read, write and ping until the connection ends. Never raises."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self.event_started.set()
                    nursery.start_soon(self._write_always)
                    nursery.start_soon(self._keep_alive)
                    await self._read_always()
                    self._scope.cancel()
        finally:
            await self._end()

    async def open_stream(self) -> IMuxedStream:
        if self.is_closed:
            raise exceptions.MuxedConnUnavailable(self.reason)
        try:
            stream = cast(MuxStream, self.mux.open())
        except LocalNetworkFault as fault:
            raise exceptions.MuxedStreamError(str(fault)) from None
        self.notify()
        return stream

    async def accept_stream(self) -> IMuxedStream:
        while not self.mux.opened:
            if self.is_closed:
                raise exceptions.MuxedConnUnavailable(self.reason)
            await self._acceptable.park()
        return cast(MuxStream, self.mux.opened.popleft())

    async def close(self) -> None:
        """Close the connection; queued frames and a GOAWAY get `FAREWELL_SECONDS` seconds to leave."""
        if not self.is_closed:
            await self._say_farewell(LEAVING)
        self._scope.cancel()
        await self._end()

    async def alive(self, within: float) -> bool:
        """Ping the peer; return whether any byte arrives from it within `within` seconds."""
        self._ping()
        with trio.move_on_after(within) as waiting:
            await self._received.park()
        return not waiting.cancelled_caught and not self.is_closed

    def give_way(self) -> None:
        """Reset the fullest stream of the peer: the host has no room for it."""
        self.mux.reset(self.mux.fullest())
        self.notify()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.secured_conn.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        return self.secured_conn.get_connection_type()

    def notify(self) -> None:
        """Wake the tasks that wait for the streams and frames that the muxer has just changed."""
        mux = self.mux
        if (load := (mux.peer_streams, mux.peer_bytes // LOAD_STEP)) != self._load:
            self._load = load
            self.on_load(self, mux.peer_streams, mux.peer_bytes)
        while mux.changed:
            stream = mux.changed.pop()
            stream.wake()
            if stream.aborted and stream in mux.opened:
                mux.opened.remove(stream)
        if mux.opened:
            self._acceptable.unpark()
        if not mux.idle:
            self._writable.unpark_all()

    async def _read_always(self) -> None:
        try:
            pieces = [self.secured_conn._drain(None)]  # what came with the last message of the negotiation
            while pieces:
                self._last_received = trio.current_time()
                self._received.unpark_all()
                for piece in pieces:
                    self.mux.receive(piece)
                self.notify()
                if self.mux.away is not None:
                    ended = "left" if self.mux.away == LEAVING else "reported a protocol violation"
                    self.reason = f"the other side {ended}"
                    return
                pieces = await self.transport.pieces()
            self.reason = "the other side closed it"
        except Malformed as fault:
            self.reason = self.fault = str(fault)
            log.warning("connection closed: %s: %s", self.peer_id, fault)
            await self._say_farewell(FAULT)
        except BROKEN_CONNECTION_ERRORS as error:
            self.reason = f"{error!r}"

    async def _write_always(self) -> None:
        batch = BATCH_MIN
        try:
            while not self.mux.left:
                frames = self.mux.data_to_send(batch)
                self.notify()
                if frames:
                    began = trio.current_time()
                    await self.transport.send(*frames)
                    prompt = trio.current_time() - began <= PROMPT_WRITE_SECONDS
                    batch = min(2 * batch, BATCH) if prompt else max(batch // 2, BATCH_MIN)
                else:
                    await self._writable.park()
            self._left.set()
        except BROKEN_CONNECTION_ERRORS as error:
            self.reason = f"{error!r}"
            self._scope.cancel()

    async def _keep_alive(self) -> None:
        unanswered = 0
        while unanswered < PINGS:  # counted, not timed: this process may have been suspended itself
            last = self._last_received
            await trio.sleep(PING_AFTER_SECONDS)
            if self._last_received > last:
                unanswered = 0
            else:
                unanswered += 1
                self._ping()
        self.reason = f"nothing received for {PING_AFTER_SECONDS * PINGS:g} s"
        self._scope.cancel()

    def _ping(self) -> None:
        self._pings += 1
        self.mux.ping(self._pings)
        self.notify()

    async def _say_farewell(self, code: int) -> None:
        self.mux.go_away(code)
        self.notify()
        with trio.move_on_after(FAREWELL_SECONDS):
            await self._left.wait()

    async def _end(self) -> None:
        if self.is_closed:
            return
        self._closed.set()
        self.on_load(self, 0, 0)
        self._received.unpark_all()
        for stream in self.mux.streams.values():
            stream.wake()
        self._acceptable.unpark_all()
        with trio.move_on_after(FAREWELL_SECONDS) as scope:
            scope.shield = True
            try:
                await self.secured_conn.close()
                if self.on_close is not None:
                    await self.on_close()
            except Exception as error:
                log.debug("end of a connection: %r", error)
