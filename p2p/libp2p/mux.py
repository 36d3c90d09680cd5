"""Many streams over one connection, `/echo2/mux/1`, without I/O: bytes in, bytes out (docs/protocol/mux.md).

1. A frame is a header (type u8, stream u32, value u32, little-endian) and, for DATA alone, `value` bytes, 1 to
   `FRAME_MAX`. A frame of an unknown type is a protocol violation.
2. The dialling side opens odd streams, the other side even ones, each in ascending order, at most `STREAMS_MAX` at a
   time. Both sides count alike: a stream counts until both directions have ended, or until a RESET is answered.
3. A side sends DATA only against credit: `WINDOW_MIN` bytes initially, then the bytes that CREDIT adds. Credit is given
   each time the application has read half a window, and the window then doubles, to at most `WINDOW_MAX`. All windows
   of a connection together grow to at most `WINDOWS`, less the bytes of unfinished frames that the application has
   taken out of them: this bounds the memory that a peer can occupy.
4. FIN ends one direction. RESET ends both at once, and is answered by a RESET unless one was sent already. Until the
   answer, data in flight is discarded against the remaining credit. After it, DATA or FIN on the stream is a violation.
5. Streams are served round robin, `QUANTUM` bytes each; control frames go first. So a small answer waits for one round
   and not for the megabytes queued before it.
6. A PING is answered by a PONG with its value. GOAWAY is the last frame: 0 when leaving, 1 when the other side broke a
   rule. Answers that a peer can provoke are bounded: at most `ANSWERS_MAX` frames may wait to be sent.
7. A violation raises `Malformed`, after which the connection cannot be used.
"""

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from echo2.p2p.errors import LocalNetworkFault, Malformed

PROTOCOL = "/echo2/mux/1"

OPEN, DATA, CREDIT, FIN, RESET, PING, PONG, GOAWAY = range(8)
HEADER = struct.Struct("<BII")
FRAME_MAX = 1 << 16
QUANTUM = 65519 - HEADER.size
"""Most bytes of DATA in one sent frame: with its header it fills one Noise message."""
WINDOW_MIN = 64 << 10
WINDOW_MAX = 4 << 20
WINDOWS = 24 << 20
"""Most bytes of all windows of a connection together; each stream has at least `WINDOW_MIN` in any case."""
STREAMS_MAX = 256
ANSWERS_MAX = 1024
CREDIT_LIMIT = (1 << 32) - 1
LEAVING, FAULT = 0, 1

Bytes = bytes | memoryview
Piece = memoryview | bytearray


@dataclass(eq=False, slots=True)
class StreamState:
    """The state of one stream on this side. Attributes are for reading, except for `most_window`."""

    id: int
    arrived: deque[Piece] = field(default_factory=deque)
    """Data received and not yet read."""
    unread: int = 0
    ended: bool = False
    """The peer has sent FIN."""
    aborted: bool = False
    """Either side has sent RESET."""
    queue: deque[Piece] = field(default_factory=deque)
    """Data written and not yet sent."""
    unsent: int = 0
    """Bytes in `queue`."""
    kept: int = 0
    """Bytes that the application has read of a frame whose rest has not come."""
    sent: int = 0
    credit: int = WINDOW_MIN
    """Bytes that this side may send."""
    allowed: int = WINDOW_MIN
    """Bytes that the peer may send."""
    window: int = WINDOW_MIN
    most_window: int = WINDOW_MAX
    """Bytes to which `window` grows at most."""
    uncredited: int = 0
    """Bytes read for which no credit was given yet."""
    finishing: bool = False
    """FIN is to follow the queued data."""
    finished: bool = False
    """This side has sent FIN."""
    ready: bool = False
    """Waiting for its share in the round robin (rule 5)."""

    def wake(self) -> None:
        """Take note of a change: of no use without tasks that wait for one."""


class Mux:
    """The state machine of one connection: receives frames, and produces the frames to send. Public attributes are for
    reading, except for `opened` and `changed`."""

    def __init__(self, dialled: bool, new_stream: Callable[[int], StreamState] = StreamState) -> None:
        """`dialled`: whether this side opened the connection. `new_stream`: makes the stream with an id."""
        self._new_stream = new_stream
        self._parity = 1 if dialled else 0
        self._next = 1 if dialled else 2
        self._highest = 0
        """Highest stream id that the peer has opened."""
        self.streams: dict[int, StreamState] = {}
        self.resetting: dict[int, int] = {}
        """Streams that this side reset and the peer has not answered -> bytes that may still arrive."""
        self.counts = [0, 0]
        """Streams per parity of the id, including those in `resetting`."""
        self.window_bytes = 0
        """Sum of the windows of all open streams."""
        self.peer_streams = self.peer_bytes = 0
        """Open streams that the peer opened, and their bytes: unread ones, and those in `StreamState.kept`."""
        self._head = bytearray()
        self._body = 0
        """Bytes of DATA still missing of the current frame."""
        self._receiving: StreamState | None = None
        """The stream of the current DATA frame; None where it is discarded."""
        self._control: deque[bytes] = deque()
        self._ready: deque[StreamState] = deque()
        self._answers = 0
        self._pings: set[int] = set()
        self.opened: deque[StreamState] = deque()
        """Streams that the peer opened, in order; the caller removes each one that it accepts."""
        self.changed: set[StreamState] = set()
        """Streams whose readability or writability may have changed; the caller removes those that it has notified."""
        self.away: int | None = None
        """The value of the peer's GOAWAY; None before it."""
        self._goaway: bytes | None = None
        self.left = False
        """Whether this side's GOAWAY was returned by `data_to_send`."""

    # -- receiving

    def receive(self, data: Bytes) -> None:
        """Process received bytes, split anywhere. DATA is kept as views of `data`. Raises `Malformed`."""
        view = data if isinstance(data, memoryview) else memoryview(data)
        at, end = 0, len(view)
        while at < end and self.away is None:
            if self._body:
                piece = view[at : at + self._body]
                at += len(piece)
                self._body -= len(piece)
                if self._receiving is not None:
                    self._keep(self._receiving, piece, len(view))
            elif not self._head and end - at >= HEADER.size:
                self._frame(*HEADER.unpack_from(view, at))
                at += HEADER.size
            else:
                part = view[at : at + HEADER.size - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == HEADER.size:
                    self._frame(*HEADER.unpack(self._head))
                    self._head.clear()

    def _keep(self, stream: StreamState, piece: memoryview, whole: int) -> None:
        """Store a piece of DATA. A view keeps all `whole` bytes that arrived with it in memory, so only a large piece
        stays a view; small ones are copied into one buffer, which also saves an object per piece."""
        if 2 * len(piece) >= whole:
            stream.arrived.append(piece)
        elif stream.arrived and isinstance(last := stream.arrived[-1], bytearray):
            last += piece
        else:
            stream.arrived.append(bytearray(piece))
        stream.unread += len(piece)
        self._count_bytes(stream, len(piece))
        self.changed.add(stream)

    def _frame(self, kind: int, id: int, value: int) -> None:
        if kind == DATA:
            self._on_data(id, value)
        elif kind == CREDIT:
            self._on_credit(id, value)
        elif kind in (OPEN, FIN, RESET):
            if value:
                raise Malformed(f"a frame of type {kind} with value {value}")
            {OPEN: self._on_open, FIN: self._on_fin, RESET: self._on_reset}[kind](id)
        elif kind in (PING, PONG, GOAWAY):
            if id:
                raise Malformed(f"a frame of type {kind} on stream {id}")
            if kind == PING:
                self._answer(PONG, 0, value)
            elif kind == PONG:
                self._on_pong(value)
            else:
                self.away = value
        else:
            raise Malformed(f"a frame of unknown type {kind}")

    def _on_open(self, id: int) -> None:
        if not id or id & 1 == self._parity or id <= self._highest:
            raise Malformed(f"stream {id} cannot be opened after {self._highest} from that side")
        if self.counts[id & 1] >= STREAMS_MAX:
            raise Malformed(f"more than {STREAMS_MAX} streams")
        self._highest = id
        self.opened.append(self._add(id))

    def _on_data(self, id: int, length: int) -> None:
        if not 1 <= length <= FRAME_MAX:
            raise Malformed(f"a frame of {length} bytes of data")
        stream = self.streams.get(id)
        if stream is not None:
            if stream.ended:
                raise Malformed(f"data on stream {id} after its end")
            allowed = stream.allowed = stream.allowed - length
        else:
            if id not in self.resetting:
                raise Malformed(f"data on stream {id}, which is not open")
            allowed = self.resetting[id] = self.resetting[id] - length
        if allowed < 0:
            raise Malformed(f"data on stream {id} beyond its window")
        self._body, self._receiving = length, stream

    def _on_credit(self, id: int, more: int) -> None:
        stream = self.streams.get(id)
        if stream is None:
            self._check_used(id)  # it may have been sent before the peer learnt of the end
            return
        stream.credit += more
        if not more or stream.credit > CREDIT_LIMIT:
            raise Malformed(f"credit of {more} on stream {id}")
        self._schedule(stream)

    def _on_fin(self, id: int) -> None:
        stream = self.streams.get(id)
        if stream is not None and not stream.ended:
            stream.ended = True
            self.changed.add(stream)
            self._forget_if_done(stream)
        elif id not in self.resetting:
            raise Malformed(f"an end of stream {id}, which is not open")

    def _on_reset(self, id: int) -> None:
        if self.resetting.pop(id, None) is not None:
            self.counts[id & 1] -= 1
            return
        stream = self.streams.get(id)
        if stream is None:
            self._check_used(id)
        else:
            self._abandon(stream)
            self.counts[id & 1] -= 1
        self._answer(RESET, id, 0)

    def _on_pong(self, value: int) -> None:
        if value not in self._pings:
            raise Malformed("a pong without a ping")
        self._pings.discard(value)

    def _check_used(self, id: int) -> None:
        used = id < self._next if id & 1 == self._parity else id <= self._highest
        if not id or not used:
            raise Malformed(f"a frame on stream {id}, which was never opened")

    def _answer(self, kind: int, id: int, value: int) -> None:
        self._answers += 1
        if self._answers > ANSWERS_MAX:
            raise Malformed(f"more than {ANSWERS_MAX} answers wait to be sent: the peer asks and does not read")
        self._control.append(HEADER.pack(kind, id, value))

    # -- sending

    def open(self) -> StreamState:
        """Open a stream. Raises `LocalNetworkFault` when `STREAMS_MAX` are open."""
        if self.counts[self._parity] >= STREAMS_MAX or self._next >= 1 << 32:
            raise LocalNetworkFault(f"{STREAMS_MAX} streams are open on this connection")
        stream = self._add(self._next)
        self._next += 2
        self._control.append(HEADER.pack(OPEN, stream.id, 0))
        return stream

    def write(self, stream: StreamState, data: Bytes) -> None:
        """Queue bytes for sending; they must not change later."""
        if stream.finishing or stream.aborted:
            raise ValueError("this direction has ended")
        if data:
            stream.queue.append(memoryview(data).cast("B"))
            stream.unsent += len(data)
            self._schedule(stream)

    def read(self, stream: StreamState, limit: int) -> list[memoryview]:
        """Return up to `limit` received bytes, and give the peer credit for them."""
        pieces = _take(stream.arrived, limit)
        self._give_credit(stream, sum(map(len, pieces)))
        return pieces

    def keep(self, stream: StreamState, nbytes: int) -> None:
        """Note that the application keeps `nbytes` that it has read of an unfinished frame."""
        self._count_bytes(stream, nbytes - stream.kept)
        stream.kept = nbytes

    def fullest(self) -> StreamState:
        """Return the stream of the peer with most bytes; the newest of several."""
        opened = [one for id, one in self.streams.items() if id & 1 != self._parity]
        return max(opened, key=lambda one: (one.unread + one.kept, one.id))

    def finish(self, stream: StreamState) -> None:
        """End this direction with FIN, after the bytes that are queued."""
        if not stream.finishing and not stream.aborted:
            stream.finishing = True
            self._schedule(stream)

    def reset(self, stream: StreamState) -> None:
        """Abort both directions with RESET; queued and unread bytes are dropped."""
        if stream.id in self.streams:
            self.resetting[stream.id] = stream.allowed
            self._abandon(stream)
            self._control.append(HEADER.pack(RESET, stream.id, 0))

    def ping(self, value: int) -> None:
        """Queue a PING; `value` comes back in its PONG."""
        self._pings.add(value)
        self._control.append(HEADER.pack(PING, 0, value))

    def go_away(self, code: int) -> None:
        """Queue GOAWAY, the last frame, after all that can be sent."""
        self._goaway = HEADER.pack(GOAWAY, 0, code)

    @property
    def idle(self) -> bool:
        return self.left or not (self._control or self._ready or self._goaway)

    def data_to_send(self, limit: int) -> list[Bytes]:
        """Return the frames to send now, with about `limit` bytes of DATA; empty when there are none."""
        if self.left:
            return []
        out: list[Bytes] = list(self._control)
        self._control.clear()
        self._answers = 0
        while self._ready and limit > 0:
            limit -= self._emit(self._ready.popleft(), out)
        if self._goaway is not None and not self._ready:
            out.append(self._goaway)
            self.left = True
        return out

    def _emit(self, stream: StreamState, out: list[Bytes]) -> int:
        """Append one frame of the stream to `out` (rule 5); return its bytes of DATA."""
        stream.ready = False
        size = min(QUANTUM, stream.credit, stream.unsent)
        if size:
            out.append(HEADER.pack(DATA, stream.id, size))
            stream.credit -= size
            stream.unsent -= size
            stream.sent += size
            self.changed.add(stream)
            out += _take(stream.queue, size)
        if stream.finishing and not stream.unsent:
            out.append(HEADER.pack(FIN, stream.id, 0))
            stream.finished = True
            self.changed.add(stream)
            self._forget_if_done(stream)
        else:
            self._schedule(stream)
        return size

    def _schedule(self, stream: StreamState) -> None:
        sendable = (stream.unsent and stream.credit) or (stream.finishing and not stream.unsent and not stream.finished)
        if sendable and not stream.ready and not stream.aborted:
            stream.ready = True
            self._ready.append(stream)

    def _give_credit(self, stream: StreamState, size: int) -> None:
        stream.unread -= size
        self._count_bytes(stream, -size)
        stream.uncredited += size
        if stream.ended or stream.aborted or stream.uncredited * 2 < stream.window:
            return
        more, stream.uncredited = stream.uncredited, 0
        grown = max(0, min(stream.window, stream.most_window - stream.window))
        if self.window_bytes + self.peer_bytes + grown <= WINDOWS:
            self.window_bytes += grown
            stream.window += grown
            more += grown
        stream.allowed += more
        self._control.append(HEADER.pack(CREDIT, stream.id, more))

    # -- the life of a stream

    def _add(self, id: int) -> StreamState:
        stream = self.streams[id] = self._new_stream(id)
        self.counts[id & 1] += 1
        self.peer_streams += id & 1 != self._parity
        self.window_bytes += stream.window
        return stream

    def _count_bytes(self, stream: StreamState, more: int) -> None:
        if stream.id & 1 != self._parity and stream.id in self.streams:
            self.peer_bytes += more

    def _forget_if_done(self, stream: StreamState) -> None:
        if stream.ended and stream.finished:
            self._drop(stream)
            self.counts[stream.id & 1] -= 1

    def _abandon(self, stream: StreamState) -> None:
        stream.aborted = True
        self._drop(stream)
        stream.queue.clear()
        stream.arrived.clear()
        stream.unsent = stream.unread = 0
        if stream.ready:
            self._ready.remove(stream)
            stream.ready = False
        if self._receiving is stream:
            self._receiving = None  # the rest of the current frame is discarded
        self.changed.add(stream)

    def _drop(self, stream: StreamState) -> None:
        self._count_bytes(stream, -stream.unread - stream.kept)
        del self.streams[stream.id]
        self.peer_streams -= stream.id & 1 != self._parity
        self.window_bytes -= stream.window


def _take(pieces: deque[Piece], limit: int) -> list[memoryview]:
    """Take the first `limit` bytes out of a queue, or all if there are fewer."""
    taken = []
    while pieces and limit:
        piece = memoryview(pieces.popleft())
        if len(piece) > limit:
            pieces.appendleft(piece[limit:])
            piece = piece[:limit]
        taken.append(piece)
        limit -= len(piece)
    return taken
