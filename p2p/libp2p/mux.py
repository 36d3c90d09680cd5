"""Many streams over one connection, `/echo2/mux/1`, without I/O: bytes in, bytes out (docs/protocol/mux.md).

1. A frame is a header (type u8, stream u32, value u32, little-endian) and, for DATA alone, `value` bytes, 1 to
   `FRAME_MAX`. A frame of a type that is not known is the peer's fault.
2. The side that dialled opens odd streams, the other even ones, each in ascending order, and at most `STREAMS_MAX` at
   a time. Both sides count alike: a stream counts until both directions have ended, or until a RESET is answered.
3. A side sends DATA only against credit: `WINDOW_MIN` bytes at first, then what CREDIT adds. Credit is given as the
   reader takes bytes. A window doubles each time it is used up, to `WINDOW_MAX` at most, and all windows of a
   connection together stay within `WINDOWS`: that is the memory which a peer can fill here, and no more.
4. FIN ends one direction. RESET ends both at once; it is answered by a RESET unless one was sent already, and until
   then what was under way is discarded against the credit that was left. After that a frame on the stream is a fault.
5. Streams take turns, `QUANTUM` bytes each; control frames go first. So a small answer waits for one round and not for
   the megabytes before it.
6. A PING is answered by a PONG with its value. AWAY is the last frame: 0 for leaving, 1 when the other side broke a
   rule. What a peer makes this side answer is bounded too: `ANSWERS_MAX` frames may wait to leave.
7. A fault raises `Malformed`, after which the connection is of no more use.
"""

import struct
from collections import deque
from dataclasses import dataclass, field

from p2p.errors import LocalNetworkFault, Malformed

PROTOCOL = "/echo2/mux/1"

OPEN, DATA, CREDIT, FIN, RESET, PING, PONG, GOAWAY = range(8)
HEADER = struct.Struct("<BII")
FRAME_MAX = 1 << 16
"""Bytes of DATA in one frame that is accepted."""
QUANTUM = 65519 - HEADER.size
"""Bytes of DATA in one frame that is sent: with its header it fills one Noise message."""
WINDOW_MIN = 64 << 10
WINDOW_MAX = 4 << 20
WINDOWS = 24 << 20
"""Bytes that all windows of a connection may add up to, though each stream has `WINDOW_MIN` in any case."""
STREAMS_MAX = 256
"""Streams that one side may have open."""
ANSWERS_MAX = 1024
CREDIT_LIMIT = (1 << 32) - 1
LEAVING, FAULT = 0, 1

Bytes = bytes | memoryview
Piece = memoryview | bytearray


@dataclass(eq=False, slots=True)
class StreamState:
    """One stream as this side sees it. Attributes are for reading; `Mux` alone changes them."""

    id: int
    pieces: deque[Piece] = field(default_factory=deque)
    """What arrived and was not read."""
    unread: int = 0
    ended: bool = False
    """The peer sends no more."""
    reset: bool = False
    """Given up by either side."""
    queue: deque[memoryview] = field(default_factory=deque)
    unsent: int = 0
    """Bytes in `queue`."""
    sent: int = 0
    credit: int = WINDOW_MIN
    """Bytes that this side may send."""
    allowed: int = WINDOW_MIN
    """Bytes that the peer may send."""
    window: int = WINDOW_MIN
    taken: int = 0
    """Bytes read for which no credit was given back yet."""
    finishing: bool = False
    finished: bool = False
    """This side's FIN is written."""
    ready: bool = False
    """Waits for its turn to send."""


class Mux:
    """The streams of one connection."""

    def __init__(self, dialled: bool) -> None:
        """`dialled`: whether this side opened the connection."""
        self._parity = 1 if dialled else 0
        self._next = 1 if dialled else 2
        self._highest = 0
        """The peer's stream opened last."""
        self._flows: dict[int, StreamState] = {}
        self._resetting: dict[int, int] = {}
        """Streams that this side reset, until the peer answers -> bytes that may still come."""
        self._counts = [0, 0]
        """Streams of each parity, the doomed included."""
        self._windows = 0
        self._head = bytearray()
        self._body = 0
        """Bytes of DATA that are missing of the frame at hand."""
        self._into: StreamState | None = None
        self._control: deque[bytes] = deque()
        self._ready: deque[StreamState] = deque()
        self._answers = 0
        self._pings: set[int] = set()
        self.opened: deque[StreamState] = deque()
        """Streams that the peer opened, in order; whoever accepts one takes it out."""
        self.changed: set[StreamState] = set()
        """Flows with news for whoever reads or writes them; whoever tells them takes them out."""
        self.away: int | None = None
        """The value of the peer's AWAY."""
        self._farewell: bytes | None = None
        self.left = False
        """This side's AWAY is written."""

    # -- bytes in

    def receive(self, data: Bytes) -> None:
        """Take what arrived, cut anywhere. DATA is kept as views of `data`. Raises `Malformed`."""
        view = data if isinstance(data, memoryview) else memoryview(data)
        at, end = 0, len(view)
        while at < end and self.away is None:
            if self._body:
                piece = view[at : at + self._body]
                at += len(piece)
                self._body -= len(piece)
                if self._into is not None:
                    self._keep(self._into, piece, len(view))
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

    def _keep(self, flow: StreamState, piece: memoryview, whole: int) -> None:
        """A view keeps all the bytes that came with it in memory, so only a large part stays a view; small ones are
        copied into one buffer, which also spares an object for each."""
        if 2 * len(piece) >= whole:
            flow.pieces.append(piece)
        elif flow.pieces and isinstance(last := flow.pieces[-1], bytearray):
            last += piece
        else:
            flow.pieces.append(bytearray(piece))
        flow.unread += len(piece)
        self.changed.add(flow)

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
            {PING: self._on_ping, PONG: self._on_pong, GOAWAY: self._on_goaway}[kind](value)
        else:
            raise Malformed(f"a frame of unknown type {kind}")

    def _on_open(self, id: int) -> None:
        if not id or id & 1 == self._parity or id <= self._highest:
            raise Malformed(f"stream {id} cannot be opened after {self._highest} from that side")
        if self._counts[id & 1] >= STREAMS_MAX:
            raise Malformed(f"more than {STREAMS_MAX} streams")
        self._highest = id
        self.opened.append(self._add(id))

    def _on_data(self, id: int, length: int) -> None:
        if not 1 <= length <= FRAME_MAX:
            raise Malformed(f"a frame of {length} bytes of data")
        flow = self._flows.get(id)
        if flow is not None:
            if flow.ended:
                raise Malformed(f"data on stream {id} after its end")
            allowed = flow.allowed = flow.allowed - length
        else:
            if id not in self._resetting:
                raise Malformed(f"data on stream {id}, which is not open")
            allowed = self._resetting[id] = self._resetting[id] - length
        if allowed < 0:
            raise Malformed(f"data on stream {id} beyond its window")
        self._body, self._into = length, flow

    def _on_credit(self, id: int, more: int) -> None:
        flow = self._flows.get(id)
        if flow is None:
            self._check_used(id)  # it may have been sent before the peer heard of the end
            return
        flow.credit += more
        if not more or flow.credit > CREDIT_LIMIT:
            raise Malformed(f"credit of {more} on stream {id}")
        self._schedule(flow)

    def _on_fin(self, id: int) -> None:
        flow = self._flows.get(id)
        if flow is not None and not flow.ended:
            flow.ended = True
            self.changed.add(flow)
            self._forget_if_done(flow)
        elif id not in self._resetting:
            raise Malformed(f"an end of stream {id}, which has none")

    def _on_reset(self, id: int) -> None:
        if self._resetting.pop(id, None) is not None:
            self._counts[id & 1] -= 1
            return
        flow = self._flows.get(id)
        if flow is None:
            self._check_used(id)
        else:
            self._abandon(flow)
            self._counts[id & 1] -= 1
        self._answer(RESET, id, 0)

    def _on_ping(self, value: int) -> None:
        self._answer(PONG, 0, value)

    def _on_pong(self, value: int) -> None:
        if value not in self._pings:
            raise Malformed("a pong without a ping")
        self._pings.discard(value)

    def _on_goaway(self, value: int) -> None:
        self.away = value

    def _check_used(self, id: int) -> None:
        used = id < self._next if id & 1 == self._parity else id <= self._highest
        if not id or not used:
            raise Malformed(f"a frame on stream {id}, which was never opened")

    def _answer(self, kind: int, id: int, value: int) -> None:
        self._answers += 1
        if self._answers > ANSWERS_MAX:
            raise Malformed("more to answer than is read")
        self._control.append(HEADER.pack(kind, id, value))

    # -- what this side does

    def open(self) -> StreamState:
        """A new stream. Raises `LocalNetworkFault` when as many are open as may be."""
        if self._counts[self._parity] >= STREAMS_MAX or self._next >= 1 << 32:
            raise LocalNetworkFault(f"{STREAMS_MAX} streams are open on this connection")
        flow = self._add(self._next)
        self._next += 2
        self._control.append(HEADER.pack(OPEN, flow.id, 0))
        return flow

    def write(self, flow: StreamState, data: Bytes) -> None:
        """Queue bytes; they must not change later."""
        if flow.finishing or flow.reset:
            raise ValueError("this direction has ended")
        if data:
            flow.queue.append(memoryview(data).cast("B"))
            flow.unsent += len(data)
            self._schedule(flow)

    def read(self, flow: StreamState, limit: int) -> list[memoryview]:
        """Up to `limit` bytes of what is there; gives credit for them."""
        pieces, left = [], limit
        while flow.pieces and left:
            piece = memoryview(flow.pieces.popleft())
            if len(piece) > left:
                flow.pieces.appendleft(piece[left:])
                piece = piece[:left]
            pieces.append(piece)
            left -= len(piece)
        self._give_credit(flow, limit - left)
        return pieces

    def finish(self, flow: StreamState) -> None:
        """No more bytes from this side, after those that are queued."""
        if not flow.finishing and not flow.reset:
            flow.finishing = True
            self._schedule(flow)

    def reset(self, flow: StreamState) -> None:
        """Give the stream up, both ways."""
        if flow.id in self._flows:
            self._resetting[flow.id] = flow.allowed
            self._abandon(flow)
            self._control.append(HEADER.pack(RESET, flow.id, 0))

    def ping(self, value: int) -> None:
        """Ask for a sign of life."""
        self._pings.add(value)
        self._control.append(HEADER.pack(PING, 0, value))

    def go_away(self, code: int) -> None:
        """AWAY, after what can be sent; nothing follows it."""
        self._farewell = HEADER.pack(GOAWAY, 0, code)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send."""
        return self.left or not (self._control or self._ready or self._farewell)

    def data_to_send(self, limit: int) -> list[Bytes]:
        """Frames to send now, about `limit` bytes of data; empty when there is nothing."""
        if self.left:
            return []
        out: list[Bytes] = list(self._control)
        self._control.clear()
        self._answers = 0
        while self._ready and limit > 0:
            limit -= self._emit(self._ready.popleft(), out)
        if self._farewell is not None and not self._ready:
            out.append(self._farewell)
            self.left = True
        return out

    def _emit(self, flow: StreamState, out: list[Bytes]) -> int:
        """One turn of a flow; the bytes of data."""
        flow.ready = False
        size = min(QUANTUM, flow.credit, flow.unsent)
        if size:
            out.append(HEADER.pack(DATA, flow.id, size))
            flow.credit -= size
            flow.unsent -= size
            flow.sent += size
            self.changed.add(flow)
            left = size
            while left:
                piece = flow.queue.popleft()
                if len(piece) > left:
                    flow.queue.appendleft(piece[left:])
                    piece = piece[:left]
                out.append(piece)
                left -= len(piece)
        if flow.finishing and not flow.unsent:
            out.append(HEADER.pack(FIN, flow.id, 0))
            flow.finished = True
            self.changed.add(flow)
            self._forget_if_done(flow)
        else:
            self._schedule(flow)
        return size

    def _schedule(self, flow: StreamState) -> None:
        sendable = (flow.unsent and flow.credit) or (flow.finishing and not flow.unsent and not flow.finished)
        if sendable and not flow.ready and not flow.reset:
            flow.ready = True
            self._ready.append(flow)

    def _give_credit(self, flow: StreamState, size: int) -> None:
        flow.unread -= size
        flow.taken += size
        if flow.ended or flow.reset or flow.taken * 2 < flow.window:
            return
        more, flow.taken = flow.taken, 0
        grown = min(flow.window, WINDOW_MAX - flow.window)
        if self._windows + grown <= WINDOWS:
            self._windows += grown
            flow.window += grown
            more += grown
        flow.allowed += more
        self._control.append(HEADER.pack(CREDIT, flow.id, more))

    # -- the life of a stream

    def _add(self, id: int) -> StreamState:
        flow = self._flows[id] = StreamState(id)
        self._counts[id & 1] += 1
        self._windows += flow.window
        return flow

    def _forget_if_done(self, flow: StreamState) -> None:
        if flow.ended and flow.finished:
            self._drop(flow)
            self._counts[flow.id & 1] -= 1

    def _abandon(self, flow: StreamState) -> None:
        flow.reset = True
        flow.queue.clear()
        flow.pieces.clear()
        flow.unsent = flow.unread = 0
        if flow.ready:
            self._ready.remove(flow)
            flow.ready = False
        if self._into is flow:
            self._into = None  # the rest of the frame at hand is discarded
        self.changed.add(flow)
        self._drop(flow)

    def _drop(self, flow: StreamState) -> None:
        del self._flows[flow.id]
        self._windows -= flow.window
