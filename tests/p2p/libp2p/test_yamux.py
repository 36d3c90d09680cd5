"""Stock yamux of foreign peers: bounded, and with the interface of our own streams."""

import asyncio

import pytest
import trio
import trio.testing

from echo2._libp2p.stream_muxer.yamux import yamux
from echo2._libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from echo2._libp2p.stream_muxer.yamux.yamux import Yamux
from echo2.p2p.libp2p import transport as libp2p
from echo2.p2p.libp2p.yamux import READ_AHEAD, YAMUX_PIECE_BYTES, YamuxStream
from tests.support.libp2p_peers import MB, new_peer, on_trio, running

SINK = "/test/sink"


async def test_bytes_of_a_foreign_peer_are_read_ahead_of_the_consumer(monkeypatch):
    """Without reading ahead the write would fail after 5 s: stock yamux lets a sender 256 KiB ahead of the reader."""
    monkeypatch.setattr(libp2p, "MUXERS", {YAMUX: Yamux})
    monkeypatch.setattr(yamux, "MAX_WINDOW_SIZE", yamux.DEFAULT_WINDOW_SIZE)
    holding, go_on, ended = asyncio.Event(), trio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    a, b = new_peer(), new_peer()
    async with running(a, b):

        async def hold(stream) -> None:
            assert await stream.receive(10) == b"begin"
            loop.call_soon_threadsafe(holding.set)
            await go_on.wait()
            assert len(await stream.receive(MB)) == 900_000
            loop.call_soon_threadsafe(ended.set)

        async def serve(transport) -> None:
            transport.handle(SINK, hold)

        async def say(transport):
            stream = await transport.open(a.peer_id, SINK)
            await stream.send(b"begin")
            await stream.send(bytes(900_000))  # returns when stock yamux has written it
            return stream

        await on_trio(a, serve)
        async with asyncio.timeout(60):
            await on_trio(b, say)
            await holding.wait()

            async def let(transport) -> None:
                go_on.set()

            await on_trio(a, let)
            await ended.wait()


class Endless:
    """A stream with upstream's interface that has bytes for every read."""

    async def read(self, n: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return bytes(n)

    async def close_write(self) -> None:
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        await trio.lowlevel.checkpoint()


def test_a_stream_is_read_ahead_up_to_its_bound() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            stream = YamuxStream(Endless(), nursery)
            await trio.testing.wait_all_tasks_blocked()
            assert READ_AHEAD <= stream.unread < READ_AHEAD + YAMUX_PIECE_BYTES
            (piece,) = await stream.pieces(2 * YAMUX_PIECE_BYTES)
            assert len(piece) == 2 * YAMUX_PIECE_BYTES
            await trio.testing.wait_all_tasks_blocked()
            assert READ_AHEAD <= stream.unread < READ_AHEAD + YAMUX_PIECE_BYTES
            await stream.reset()

    trio.run(main)


def test_a_reset_fails_later_writes_and_ends_the_tasks_of_its_stream() -> None:
    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                stream = YamuxStream(Endless(), nursery)
                await stream.reset()
                with pytest.raises(ConnectionResetError):
                    stream.put(b"x")

    trio.run(main)
