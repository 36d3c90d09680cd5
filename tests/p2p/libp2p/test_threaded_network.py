"""A peer on a trio thread, called from asyncio: cancellation, the end of the thread, and a blocked loop."""

import asyncio
import time

import pytest

from echo2.p2p.errors import Unreachable
from tests.support.libp2p_peers import MB, new_peer, running
from tests.support.peers import payload_file


@pytest.mark.slow
async def test_a_blocked_asyncio_loop_does_not_stop_chunks(tmp_path):
    manifest = payload_file(tmp_path / "a", 8 * MB)
    a, b, c = new_peer(), new_peer(), new_peer()
    async with running(a, b, c, chained=True):
        await a.share(manifest, tmp_path / "a")
        fetches = [asyncio.create_task(peer.fetch(manifest, tmp_path / name)) for peer, name in ((b, "b"), (c, "c"))]
        await asyncio.sleep(0)
        deadline = time.monotonic() + 60
        while not (tmp_path / "c").exists() and time.monotonic() < deadline:
            time.sleep(2)  # noqa: ASYNC251 - the daemon's loop is busy; trio's threads are not
        assert (tmp_path / "c").exists()
        await asyncio.gather(*fetches)


async def test_cancelling_a_request_cancels_it_on_the_other_thread_too():
    started, ended = asyncio.Event(), asyncio.Event()

    async def slow(peer: str, request: bytes) -> bytes:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return b""

    a, b = new_peer(), new_peer()
    a.serve("slow", slow, limit=100)
    async with running(a, b):
        task = asyncio.create_task(b.request(a.peer_id, "slow", b"", timeout=60))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60):
            await ended.wait()


async def test_the_failure_of_the_thread_is_an_error_of_run():
    a = new_peer()
    run = asyncio.create_task(a.run())
    await a.ready()

    async def die() -> None:
        raise RuntimeError("trio died")

    a._thread._on_trio(lambda: a._thread._nursery.start_soon(die))
    with pytest.raises(BaseExceptionGroup) as caught:
        await run
    assert caught.value.split(RuntimeError)[0] is not None
    with pytest.raises(Unreachable):
        await a.peers()


async def test_a_dial_that_fails_is_one_connection():
    """Upstream tries each dial four times: a limit on dials would be four times as wide."""
    came = []

    def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer.get_extra_info("peername"))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server, running(one := new_peer()):
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable):
            await one.dial([f"/ip4/127.0.0.1/tcp/{port}/p2p/{new_peer().peer_id}"])
    assert len(came) == 1
