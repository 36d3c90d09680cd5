"""The muxer's tasks over an in-memory connection: back-pressure, cancellation, ends, and protocol violations."""

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from echo2._libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamClosed,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)
from echo2.p2p.libp2p import mux, muxed_connection
from echo2.p2p.libp2p.mux import HEADER, Bytes
from echo2.p2p.libp2p.muxed_connection import (
    FAREWELL_SECONDS,
    PING_AFTER_SECONDS,
    PINGS,
    UNSENT_STREAM_BYTES,
    MuxConn,
    MuxStream,
)
from echo2.p2p.libp2p.noise_session import STUCK_WRITE_SECONDS
from tests.support.muxed_pairs import connected, on_fake_time, opened, read_all


async def accept_all(conn: MuxConn) -> None:
    while True:
        await conn.accept_stream()


def test_megabytes_in_both_directions_at_once_arrive_whole():
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)
            data, received = bytes(range(256)) * 20_000, {}

            async def talk(stream: MuxStream) -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stream.write, data)

                    async def listen() -> None:
                        received[stream] = await read_all(stream)

                    nursery.start_soon(listen)
                    await trio.sleep(1)
                    await stream.close()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(talk, one)
                nursery.start_soon(talk, other)
            assert received[one] == received[other] == data

    on_fake_time(main)


def test_a_reader_that_pauses_for_an_hour_blocks_its_own_stream_alone():
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)
            second, its = await opened(near, far)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.write, bytes(3 * UNSENT_STREAM_BYTES))
                await trio.sleep(3600)
                await second.write(b"meanwhile")
                assert await its.read(100) == b"meanwhile"
                assert other.unread == mux.WINDOW_MIN
                left = 3 * UNSENT_STREAM_BYTES
                while left:
                    left -= len(await other.read(100_000))

    on_fake_time(main)


def test_a_cancelled_write_is_sent_whole_and_the_connection_keeps_working():
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)
            with trio.move_on_after(1) as scope:
                await one.write(bytes(2 * UNSENT_STREAM_BYTES))
            assert scope.cancelled_caught
            await one.close()
            assert len(await read_all(other)) == 2 * UNSENT_STREAM_BYTES
            second, its = await opened(near, far)
            await second.write(b"x")
            assert await its.read(1) == b"x"

    on_fake_time(main)


def test_one_direction_of_a_stream_may_close_and_further_writes_are_refused():
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)
            await one.close()
            with pytest.raises(MuxedStreamClosed):
                await one.write(b"x")
            with pytest.raises(MuxedStreamEOF):
                await other.read(1)
            await other.write(b"still here")
            assert await one.read(100) == b"still here"
            await other.close()
            await trio.testing.wait_all_tasks_blocked()
            assert one.is_closed
            assert not near.mux.streams
            assert not far.mux.streams

    on_fake_time(main)


def test_a_reset_by_the_other_side_wakes_reader_and_writer():
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)

            async def fails(call: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises(MuxedStreamReset):
                    await call()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails, lambda: one.read(1))
                nursery.start_soon(fails, lambda: one.write(bytes(2 * UNSENT_STREAM_BYTES)))
                await trio.testing.wait_all_tasks_blocked()
                await other.reset()
            assert not near.mux.streams
            assert not far.mux.streams

    on_fake_time(main)


def test_a_close_sends_the_queued_bytes_and_ends_the_other_side():
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)
            await one.write(b"last words")
            await near.close()
            assert await other.read(100) == b"last words"
            with pytest.raises(MuxedStreamReset, match="left"):
                await other.read(100)
            for call in (far.open_stream, far.accept_stream, near.open_stream, near.accept_stream):
                with pytest.raises(MuxedConnUnavailable):
                    await call()

    on_fake_time(main)


def test_a_close_waits_no_longer_than_a_farewell_for_a_frozen_peer():
    async def main() -> None:
        async with connected() as (near, _):
            near.transport.conn.frozen = True
            start = trio.current_time()
            await near.close()
            assert near.is_closed
            assert (
                trio.current_time() - start <= 2 * FAREWELL_SECONDS + STUCK_WRITE_SECONDS
            )  # one write is shielded at the most

    on_fake_time(main)


def test_a_silent_peer_is_pinged_and_then_disconnected():
    async def main() -> None:
        async with connected() as (near, far):
            far.transport.conn.mute = True
            start = trio.current_time()
            with pytest.raises(MuxedConnUnavailable, match="nothing received for"):
                await near.accept_stream()
            assert PING_AFTER_SECONDS * PINGS <= trio.current_time() - start <= PING_AFTER_SECONDS * (PINGS + 1)

    on_fake_time(main)


def test_a_ping_is_answered_at_once_and_its_absence_is_noticed_in_time():
    async def main() -> None:
        async with connected() as (near, far):
            start = trio.current_time()
            assert await near.alive(5.0)
            assert trio.current_time() - start < 1
            far.transport.conn.mute = True
            assert not await near.alive(5.0)
            assert trio.current_time() - start == pytest.approx(5, abs=1)
            assert near.is_established, "a missed ping alone closes nothing"

    on_fake_time(main)


def test_an_idle_connection_with_a_living_peer_stays():
    async def main() -> None:
        async with connected() as (near, far):
            await trio.sleep(3600)
            assert near.is_established
            assert far.is_established

    on_fake_time(main)


FAULTS = {
    "an unknown type": HEADER.pack(99, 1, 0),
    "a stream of the wrong parity": HEADER.pack(mux.OPEN, 2, 0),
    "a frame too long": HEADER.pack(mux.OPEN, 1, 0) + HEADER.pack(mux.DATA, 1, 1 << 31),
    "bytes beyond the window": HEADER.pack(mux.OPEN, 1, 0) + (HEADER.pack(mux.DATA, 1, 60_000) + bytes(60_000)) * 2,
    "a flood of streams": b"".join(HEADER.pack(mux.OPEN, 2 * number + 1, 0) for number in range(300)),
}


@pytest.mark.parametrize("garbage", FAULTS.values(), ids=FAULTS.keys())
def test_a_protocol_violation_closes_its_connection_with_the_reason_and_notifies_the_peer(garbage, caplog):
    async def main() -> None:
        async with connected() as (near, far), connected() as (other, its):
            await near.secured_conn.write(garbage)
            with pytest.raises(MuxedConnUnavailable):
                await accept_all(far)
            with pytest.raises(MuxedConnUnavailable, match="reported a protocol violation"):
                await near.accept_stream()
            assert (await opened(other, its))[0]

    with caplog.at_level(logging.WARNING, "p2p"):
        on_fake_time(main)
    assert "closed: " in caplog.text


def test_what_the_streams_of_a_peer_occupy_is_told_and_the_fullest_of_them_gives_way():
    told: list[tuple[int, int]] = []

    async def main() -> None:
        async with connected() as (near, far):
            far.on_load = lambda conn, streams, nbytes: told.append((streams, nbytes))
            streams = [await opened(near, far) for _ in range(3)]
            await opened(far, near)  # one of this side's own counts nowhere
            for (stream, _), size in zip(streams, (10_000, 60_000, 30_000), strict=True):
                await stream.write(bytes(size))
            await trio.testing.wait_all_tasks_blocked()
            assert told[-1] == (3, 100_000)
            await streams[1][1].pieces(40_000)
            streams[1][1].keep(40_000)
            assert told[-1] == (3, 100_000), "what a reader keeps counts on"
            far.give_way()
            assert told[-1] == (2, 40_000)
            with pytest.raises(MuxedStreamReset):
                await streams[1][1].read(1)
            await streams[2][1].pieces(30_000)
            await near.close()
            await trio.testing.wait_all_tasks_blocked()
            assert told[-1] == (0, 0)

    on_fake_time(main)


def test_a_narrow_stream_keeps_little_ahead_of_its_reader():
    async def main() -> None:
        async with connected() as (near, far):
            for narrow in (False, True):
                one, other = await opened(near, far)
                if narrow:
                    other.narrow(2 * mux.WINDOW_MIN)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.write, bytes(4 << 20))
                    for _ in range(20):
                        await trio.testing.wait_all_tasks_blocked()
                        ahead = other.unread
                        await other.pieces(32 << 10)
                    nursery.cancel_scope.cancel()
                assert (ahead <= 2 * mux.WINDOW_MIN) == narrow

    on_fake_time(main)


def test_a_stream_that_gives_way_at_once_reaches_no_handler():
    async def main() -> None:
        async with connected() as (near, far):
            far.on_load = lambda conn, streams, nbytes: conn.give_way() if streams > 1 else None
            first = await near.open_stream()
            second = await near.open_stream()
            await trio.testing.wait_all_tasks_blocked()
            assert (await far.accept_stream()).stream_id == first.stream_id
            with trio.move_on_after(1) as scope:
                await far.accept_stream()
            assert scope.cancelled_caught
            with pytest.raises(MuxedStreamReset):
                await second.read(1)

    on_fake_time(main)


def test_a_stream_too_many_is_refused_on_this_side():
    async def main() -> None:
        async with connected() as (near, far):
            for _ in range(mux.STREAMS_MAX):
                await near.open_stream()
            with pytest.raises(MuxedStreamError, match="256"):
                await near.open_stream()
            await trio.testing.wait_all_tasks_blocked()
            assert near.is_established
            assert far.is_established

    on_fake_time(main)


def test_the_writer_s_batch_is_bounded_so_that_small_frames_do_not_wait():
    assert muxed_connection.BATCH <= 512 << 10


def test_a_batch_grows_while_writes_leave_promptly_and_shrinks_when_they_do_not(monkeypatch):
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)
            slow, sizes = 0.0, []
            honest = near.transport.send

            async def send(*pieces: Bytes) -> None:
                sizes.append(sum(map(len, pieces)))
                await trio.sleep(slow)
                await honest(*pieces)

            monkeypatch.setattr(near.transport, "send", send)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_all, other)
                await one.write(bytes(8 << 20))
                await trio.sleep(60)
                assert max(sizes) > muxed_connection.BATCH
                assert max(sizes) <= muxed_connection.BATCH + 100 * HEADER.size
                slow = 2 * muxed_connection.PROMPT_WRITE_SECONDS
                sizes.clear()
                await one.write(bytes(8 << 20))
                await trio.sleep(60)
                assert max(sizes[6:]) <= muxed_connection.BATCH_MIN + 100 * HEADER.size
                nursery.cancel_scope.cancel()

    on_fake_time(main)


def test_a_reader_waits_for_the_requested_bytes_but_never_for_more_than_half_the_window():
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)
            lengths = []

            async def read() -> None:
                lengths.append(sum(map(len, await other.pieces(10_000, 10_000))))
                lengths.append(sum(map(len, await other.pieces(1 << 20, 1 << 20))))
                lengths.append(sum(map(len, await other.pieces(1 << 20, 1 << 20))))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                for _ in range(4):
                    await one.write(bytes(2_500))
                    assert lengths == []
                    await trio.sleep(1)
                assert lengths == [10_000]
                await one.write(bytes(200_000))  # more than the first window: it must be read for more to come
                await trio.sleep(1)
                assert lengths[1] >= mux.WINDOW_MIN // 2
                await one.close()
                await trio.sleep(1)
            assert len(lengths) == 3

    on_fake_time(main)


def test_received_bytes_are_read_before_the_end_of_the_connection_is_raised():
    async def main() -> None:
        async with connected() as (near, far):
            one, other = await opened(near, far)
            await one.write(b"last words")
            await trio.sleep(1)
            await near.close()
            await trio.sleep(1)
            assert b"".join(await other.pieces(100, 100)) == b"last words"
            with pytest.raises(MuxedStreamReset, match="left"):
                await other.pieces(100, 100)

    on_fake_time(main)
