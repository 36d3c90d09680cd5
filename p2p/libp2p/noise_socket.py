"""Direct access to the socket under a raw connection of py-libp2p.

Bytes bypass upstream's layers, which pass through the scheduler four times per read or write. A relayed connection has
no TCP socket and uses these layers. As with upstream, a socket closed by this side reads as ended, and bytes sent to it
are lost.
"""

import os

import trio

from echo2._libp2p.abc import IRawConnection
from echo2._libp2p.io.abc import ReadWriteCloser
from echo2._libp2p.io.exceptions import ConnectionClosedError
from echo2._libp2p.io.trio import TrioTCPStream
from echo2.p2p.libp2p.mux import Bytes
from echo2.p2p.limits.least_rate import Flow
from echo2.p2p.limits.proxy_header import Receive

RECEIVE_BYTES = 256 << 10


class RawSocket:
    """Reads and writes the bytes of one raw connection. One task may send, and one receive. `received_flow`,
    `sent_flow`: its bytes in each direction: of a Noise message that is under way as well."""

    def __init__(self, conn: IRawConnection) -> None:
        self._conn = conn
        self.close = conn.close
        stream = getattr(conn, "stream", None)
        self._socket = stream.stream.socket if isinstance(stream, TrioTCPStream) else None
        self._buffer = memoryview(bytearray(RECEIVE_BYTES if self._socket else 0))
        self.received_flow = self.sent_flow = Flow(0, 0.0)

    async def receive(self) -> Bytes:
        """Return received bytes, none at the end; the next call overwrites them. Raises `ConnectionClosedError`."""
        data = await self._receive()
        self.received_flow = self.received_flow.plus(len(data), trio.current_time())
        return data

    async def _receive(self) -> Bytes:
        if self._socket is None:
            return await self._conn.read(RECEIVE_BYTES)
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            while True:
                try:
                    length = os.readv(self._descriptor(), [self._buffer])
                    break
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(self._descriptor())
        except trio.ClosedResourceError:
            return b""
        except OSError as error:
            raise ConnectionClosedError(f"{error!r}", transport="tcp") from error
        await trio.lowlevel.cancel_shielded_checkpoint()  # lets other tasks run while data keeps arriving
        return self._buffer[:length]

    def send_now(self, data: memoryview) -> int:
        """Write without waiting; return the number of bytes written. Raises `ConnectionClosedError`."""
        if self._socket is None:
            return 0
        try:
            length = os.write(self._descriptor(), data)
            self.sent_flow = self.sent_flow.plus(length, trio.current_time())
            return length
        except BlockingIOError:
            return 0
        except trio.ClosedResourceError:
            return len(data)
        except OSError as error:
            raise ConnectionClosedError(f"{error!r}", transport="tcp") from error

    async def send(self, data: memoryview) -> None:
        """Write all bytes. Raises `ConnectionClosedError`."""
        if self._socket is None:
            await self._conn.write(data)  # type: ignore[arg-type]
            self.sent_flow = self.sent_flow.plus(len(data), trio.current_time())
            return
        while data:
            try:
                await trio.lowlevel.wait_writable(self._descriptor())
            except trio.ClosedResourceError:
                return
            data = data[self.send_now(data) :]

    def _descriptor(self) -> int:
        """Return the descriptor, read anew per call: the number of a closed socket may belong to another file. Raises
        `trio.ClosedResourceError` if this side closed the socket."""
        assert self._socket is not None
        if (number := self._socket.fileno()) < 0:
            raise trio.ClosedResourceError("this side closed it")
        return number


async def readable(stream: ReadWriteCloser) -> None:
    """Wait until a byte has arrived or the other side has closed; return at once if there is no TCP socket. Raises
    `trio.ClosedResourceError` if this side closes it."""
    if isinstance(stream, TrioTCPStream):
        await trio.lowlevel.wait_readable(stream.stream.socket)


def receiver(stream: ReadWriteCloser) -> Receive | None:
    """Return the `recv` of a stream's TCP socket, for the bytes before its handshake; None if it has no socket."""
    return stream.stream.socket.recv if isinstance(stream, TrioTCPStream) else None
