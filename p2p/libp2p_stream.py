"""One libp2p stream as a `p2p.transport.Stream` (rules 3 to 6 of p2p/libp2p.py)."""

import logging
from collections.abc import Awaitable, Callable

import trio
from libp2p.abc import INetStream
from libp2p.network.stream.exceptions import StreamEOF

from p2p.errors import LocalFault, Malformed, Unreachable

log = logging.getLogger("p2p")

PIECE = 64 << 10
"""Bytes of one read or write on the muxer."""
READ_AHEAD = 1 << 20
"""Bytes that are read before anybody asked for them."""
LENGTH = 4
RESET_TIMEOUT = 5.0
"""Seconds for a reset to leave; after that the connection is closed."""


class LibP2PStream:
    """Frames over a muxed stream. Its tasks live in the transport's nursery, and end with the stream."""

    def __init__(
        self,
        stream: INetStream,
        peer: str,
        nursery: trio.Nursery,
        patience: float,
        drop: Callable[[str], Awaitable[None]],
    ) -> None:
        """`patience`: seconds. `drop`: closes the connection with a peer."""
        self._stream = stream
        self._peer = peer
        self._nursery = nursery
        self._patience = patience
        self._drop = drop
        self._buffer = bytearray()
        self._ended = False
        self._finished = False
        self._broken: str | None = None
        self._progress = self._written = trio.current_time()
        self._changed = trio.Event()
        self._consumed = trio.Event()
        self._sending = trio.Lock()
        self._reading = trio.CancelScope()
        nursery.start_soon(self._read_always)

    @property
    def peer(self) -> str:
        """See `Stream`."""
        return self._peer

    async def send(self, frame: bytes) -> None:
        """See `Stream`. Where the caller is cancelled, the stream is reset."""
        await self._in_transport(self._write, len(frame).to_bytes(LENGTH, "big") + frame)

    async def receive(self, limit: int) -> bytes | None:
        """See `Stream`."""
        if not await self._have(LENGTH):
            if self._buffer:
                raise Malformed(f"{self._peer} ended in the middle of a frame")
            return None
        length = int.from_bytes(self._buffer[:LENGTH], "big")
        if length > limit:
            raise Malformed(f"{self._peer} announces a frame of {length} bytes, the limit is {limit}")
        self._consume(LENGTH)
        frame = bytearray()
        while len(frame) < length:
            if not await self._have(1):
                raise Malformed(f"{self._peer} ended in the middle of a frame")
            part = self._buffer[: length - len(frame)]
            frame += part
            self._consume(len(part))
        return bytes(frame)

    async def finish(self) -> None:
        """See `Stream`."""
        if not self._finished and self._broken is None:
            self._finished = True
            await self._in_transport(self._close_write, b"")

    async def reset(self) -> None:
        """See `Stream`."""
        self._break("this side reset the stream")

    async def linger(self) -> None:
        """Finish, and discard what still arrives until the other side is done or makes no progress; then reset."""
        try:
            await self.finish()
            while await self._have(1):
                self._consume(len(self._buffer))
        except Unreachable as error:
            log.debug("%s", error)
        finally:
            self._break("the handler is done")

    async def _in_transport(self, write: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
        """Run a write to its end in a task that this caller's cancellation does not reach."""
        async with self._sending:
            self._check()
            done = trio.Event()

            async def task() -> None:
                try:
                    await write(data)
                except Exception as error:
                    self._break(f"{error!r}")
                finally:
                    done.set()

            self._written = trio.current_time()
            self._nursery.start_soon(task)
            try:
                while not done.is_set() and self._broken is None:
                    with trio.move_on_at(self._written + self._patience):
                        await done.wait()
                    if trio.current_time() >= self._written + self._patience and not done.is_set():
                        self._break(f"nothing could be sent for {self._patience:g} s")
                        self._nursery.start_soon(self._drop, self._peer)
            except trio.Cancelled:
                self._break("a write was given up")
                raise
            self._check()

    async def _write(self, data: bytes) -> None:
        if self._finished:
            raise LocalFault("a frame was sent after the stream's finish")
        for start in range(0, len(data), PIECE):
            await self._stream.write(data[start : start + PIECE])
            self._written = trio.current_time()
            if self._broken is not None:
                return

    async def _close_write(self, _: bytes) -> None:
        await self._stream.close_write()  # type: ignore[attr-defined]

    async def _read_always(self) -> None:
        with self._reading:
            try:
                while True:
                    while len(self._buffer) >= READ_AHEAD:
                        self._consumed = trio.Event()
                        await self._consumed.wait()
                    data = await self._stream.read(PIECE)
                    if not data:
                        break
                    self._buffer += data
                    self._wake()
            except StreamEOF:
                pass
            except Exception as error:
                self._break(f"{error!r}")
        self._ended = True
        self._wake()

    async def _have(self, count: int) -> bool:
        """Wait until the buffer has so many bytes; False when the other side finished before."""
        started = trio.current_time()
        while len(self._buffer) < count:
            self._check()
            if self._ended:
                return False
            with trio.move_on_at(max(started, self._progress) + self._patience) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                self._break(f"no byte for {self._patience:g} s")
        return True

    def _consume(self, count: int) -> None:
        del self._buffer[:count]
        self._consumed.set()

    def _wake(self) -> None:
        self._progress = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()

    def _check(self) -> None:
        if self._broken is not None:
            raise Unreachable(f"stream with {self._peer}: {self._broken}")

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
            self._changed.set()
            self._changed = trio.Event()
            self._nursery.start_soon(self._reset)

    async def _reset(self) -> None:
        with trio.move_on_after(RESET_TIMEOUT) as scope:
            try:
                await self._stream.reset()
            except Exception as error:
                log.debug("reset: %r", error)
        if scope.cancelled_caught:  # not even a reset leaves: the connection is stuck
            await self._drop(self._peer)
        self._reading.cancel()
