"""A Noise connection over in-memory streams: reads, and writes that no cancellation can cut."""

import logging

import pytest
import trio
import trio.testing

from echo2._libp2p.io.exceptions import ConnectionClosedError
from echo2._libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamReset,
)
from echo2.p2p.libp2p.noise_session import STUCK_WRITE_SECONDS
from tests.support.muxed_pairs import connected, on_fake_time, opened, session


def test_a_write_that_never_leaves_closes_the_connection():
    async def main() -> None:
        async with connected() as (near, far):
            one, _ = await opened(near, far)
            near.transport.conn.frozen = True
            start = trio.current_time()
            await one.write(b"x")
            with pytest.raises(MuxedStreamReset):
                await one.read(1)
            assert trio.current_time() - start == pytest.approx(STUCK_WRITE_SECONDS, abs=2)

    on_fake_time(main)


def test_bytes_that_fail_authentication_close_the_connection_with_the_reason(caplog):
    async def main() -> None:
        async with connected() as (near, far):
            await near.transport.conn.write(b"\x00\x20" + bytes(32))
            with pytest.raises(MuxedConnUnavailable):
                await far.accept_stream()

    with caplog.at_level(logging.WARNING, "p2p"):
        on_fake_time(main)
    assert "fails authentication" in caplog.text


def test_an_encrypted_message_is_sent_even_if_its_task_is_cancelled():
    async def main() -> None:
        one, other = trio.testing.lockstep_stream_pair()
        near, far = session(one, True), session(other, False)
        with trio.move_on_after(0.1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.write, b"first")

                async def late() -> None:
                    await trio.sleep(1)

                nursery.start_soon(late)
                with trio.CancelScope(shield=True):
                    await trio.sleep(2)
                    assert await far.read(5) == b"first"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.write, b"second")
            assert await far.read(6) == b"second"

    on_fake_time(main)


def test_read_returns_the_requested_number_of_bytes_and_the_rest_before_the_end():
    async def main() -> None:
        one, other = trio.testing.memory_stream_pair()
        near, far = session(one, True), session(other, False)
        for part in (b"abc", b"defg", b"h"):
            await near.write(part)
        assert await far.read(0) == b""
        assert await far.read(2) == b"ab"
        assert await far.read(4) == b"cdef"
        await near.close()
        assert await far.read(100) == b"gh"
        with pytest.raises(ConnectionClosedError):
            await far.read(1)

    on_fake_time(main)
