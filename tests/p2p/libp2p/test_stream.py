"""Frames and the watchdog of one stream over libp2p."""

import asyncio
import threading

import pytest
import trio

from echo2._libp2p.network.stream.exceptions import StreamEOF
from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.libp2p.stream import LibP2PStream
from echo2.p2p.peer import rpc
from tests.support.libp2p_peers import MB, echo, new_peer, on_trio, running


async def test_a_frozen_peer_is_noticed_by_the_watchdog():
    a, b = new_peer(), new_peer(patience=3.0)
    a.serve("echo", echo, limit=100)
    async with running(a, b):
        assert await b.request(a.peer_id, "echo", b"x", timeout=60)
        frozen, thaw = threading.Event(), threading.Event()

        async def freeze(transport) -> None:
            frozen.set()
            thaw.wait(60)  # the whole trio thread of `a` stands still, as under SIGSTOP

        standing = asyncio.create_task(on_trio(a, freeze))
        assert await asyncio.to_thread(frozen.wait, 60)
        try:
            with pytest.raises(Unreachable):
                await b.request(a.peer_id, "echo", b"x", timeout=300)
            assert not standing.done()
        finally:
            thaw.set()
        await standing


async def test_a_frame_over_the_limit_is_refused_before_it_is_read():
    a, b = new_peer(), new_peer()
    a.serve("echo", echo, limit=1000)
    async with running(a, b):
        with pytest.raises(Malformed, match="1000 bytes"):
            await b.request(a.peer_id, "echo", bytes(20 * MB), timeout=60)

        async def announce(transport) -> int:
            """Announce 1 GB and send none of it: the refusal arrives nevertheless."""
            stream = await transport.open(a.peer_id, rpc.PROTOCOL)
            await stream.send(b"echo")
            await stream._stream.write((1 << 30).to_bytes(4, "big"))
            return len(await stream.receive(1000))

        assert await on_trio(b, announce) < 100
        assert await b.request(a.peer_id, "echo", b"x", timeout=60)


class Drop:
    """A stream with upstream's interface that returns one byte per read, and raises at its end."""

    def __init__(self, data: bytes) -> None:
        self.left = data

    async def read(self, n: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self.left:
            raise StreamEOF
        first, self.left = self.left[:1], self.left[1:]
        return first

    async def close_write(self) -> None:
        pass

    async def reset(self) -> None:
        pass


def frames(data: bytes) -> list[bytes | type | None]:
    """Return the frames that a stream reads from these bytes, up to None or `Malformed`."""

    async def main() -> list[bytes | type | None]:
        frames_seen: list[bytes | type | None] = []
        async with trio.open_nursery() as nursery:

            async def drop(peer: str) -> None:
                raise AssertionError

            stream = LibP2PStream(Drop(data), "peer", nursery, 60.0, drop)
            try:
                while not frames_seen or frames_seen[-1] is not None:
                    frames_seen.append(await stream.receive(10_000))
            except Malformed:
                frames_seen.append(Malformed)
            await stream.reset()
        return frames_seen

    return trio.run(main)


def test_a_frame_received_byte_by_byte_arrives_whole_and_the_end_is_none():
    frame = bytes(range(256)) * 4
    whole = len(frame).to_bytes(4, "big") + frame
    assert frames(whole * 2) == [frame, frame, None]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 1027])
def test_a_frame_that_is_cut_short_is_malformed(length):
    whole = (1024).to_bytes(4, "big") + bytes(1024)
    assert frames(whole[:length]) == [Malformed]
