"""Two ends of a muxed Noise connection over in-memory streams, on a fake clock, for tests."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from echo2._libp2p.io.exceptions import ConnectionClosedError
from echo2._libp2p.peer.id import ID
from echo2._libp2p.security.secure_session import SecureSession
from echo2._libp2p.stream_muxer.exceptions import MuxedStreamEOF
from echo2.p2p.libp2p.identity_keys import create_new_key_pair
from echo2.p2p.libp2p.muxed_connection import MuxConn, MuxStream
from echo2.p2p.libp2p.noise import Decryptor, Encryptor
from echo2.p2p.libp2p.noise_session import BatchedTransport

KEYS = bytes(32), bytes(range(32))


class Wire:
    """A raw connection over one end of a pair of in-memory streams. `frozen`: reads and writes hang; `mute`: received
    and sent bytes are lost."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.frozen = self.mute = False

    async def read(self, n: int) -> bytes:
        while True:
            data = await self.stream.receive_some(n)
            if not self.frozen and not self.mute:
                return bytes(data)

    async def write(self, data: bytes) -> None:
        if self.frozen:
            await trio.sleep_forever()
        try:
            if not self.mute:
                await self.stream.send_all(bytes(data))
        except (trio.ClosedResourceError, trio.BrokenResourceError) as error:
            raise ConnectionClosedError(str(error)) from None

    async def close(self) -> None:
        await self.stream.aclose()


def session(stream: trio.abc.Stream, dialled: bool) -> SecureSession:
    """Return one end of a Noise connection over `stream`, as after a handshake."""
    pair = create_new_key_pair()
    peer = ID.from_pubkey(pair.public_key)
    sending, receiving = KEYS if dialled else KEYS[::-1]
    return SecureSession(
        local_peer=peer, local_private_key=pair.private_key, remote_peer=peer,
        remote_permanent_pubkey=pair.public_key, is_initiator=dialled,
        conn=BatchedTransport(Wire(stream), Encryptor(sending), Decryptor(receiving), peer),
    )  # fmt: skip


@asynccontextmanager
async def connected(*, narrow: bool = False) -> AsyncIterator[tuple[MuxConn, MuxConn]]:
    """Run both ends of a connection; with `narrow`, over a pipe that holds one write."""
    make = trio.testing.lockstep_stream_pair if narrow else trio.testing.memory_stream_pair
    near, far = (
        MuxConn(end, end.remote_peer)
        for end in map(session, make(), (True, False))
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        for one in (near, far):
            nursery.start_soon(one.start)
            await one.event_started.wait()
        yield near, far
        nursery.cancel_scope.cancel()


def on_fake_time(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` on trio with a clock that jumps over every wait."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.001))


async def opened(near: MuxConn, far: MuxConn) -> tuple[MuxStream, MuxStream]:
    """Open a stream from `near`; return both its ends."""
    return await near.open_stream(), await far.accept_stream()


async def read_all(stream: MuxStream) -> bytes:
    """Return the bytes of a stream, up to its end."""
    data_read = bytearray()
    try:
        while True:
            data_read += await stream.read(100_000)
    except MuxedStreamEOF:
        return bytes(data_read)
