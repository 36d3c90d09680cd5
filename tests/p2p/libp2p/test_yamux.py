"""Stock yamux of foreign peers: bounded, and with the interface of our own streams."""

import asyncio

import pytest
import trio
import trio.testing

from echo2._libp2p.stream_muxer.yamux import yamux
from echo2._libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from echo2._libp2p.stream_muxer.yamux.yamux import Yamux
from echo2.p2p.libp2p import transport as libp2p
from echo2.p2p.libp2p.yamux import READ_AHEAD, YAMUX_PIECE_BYTES, BoundedYamux, YamuxStream
from tests.support.libp2p_peers import MB, new_peer, on_trio, running
from tests.support.muxed_pairs import on_fake_time, session

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


@pytest.mark.parametrize("by_peer", [True, False], ids=["the peer", "this side"])
def test_streams_that_are_reset_are_told_as_given_back_at_once(by_peer: bool) -> None:
    """Before, they counted until the next stream or byte of that connection."""
    loads = list[int]()

    async def main() -> None:
        near_end, far_end = map(session, trio.testing.memory_stream_pair(), (True, False))
        near, far = Yamux(near_end, near_end.remote_peer), BoundedYamux(far_end, far_end.remote_peer)
        far.on_load = lambda conn, streams, nbytes: loads.append(streams)
        async with trio.open_nursery() as nursery:
            for end in (near, far):
                nursery.start_soon(end.start)
                await end.event_started.wait()
            streams = [await near.open_stream() for _ in range(3)]
            taken = [await far.accept_stream() for _ in streams]
            assert loads[-1] == 3
            for stream in streams if by_peer else taken:
                await stream.reset()
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    on_fake_time(main)
    assert loads[-1] == 0


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
