"""The holder's side: downloaders that break the protocol, and slots at the uplink for data outside a chunk stream."""

import anyio
import pytest

from echo2.p2p.errors import Unreachable
from echo2.p2p.limits.bandwidth import FairQueue, bandwidth
from echo2.p2p.swarm import messages as wire
from echo2.p2p.swarm.exchange import PROTOCOL
from echo2.p2p.swarm.upload import UplinkSlot
from tests.support.chunk_streams import against, drain, saying
from tests.support.clock import run_fake


def test_slots_wait_for_the_limit_and_a_cancelled_one_lets_the_next_go() -> None:
    async def main() -> None:
        queue, finished = FairQueue(bandwidth(100.0)), list[tuple[str, float]]()
        began = anyio.current_time()

        async def acquire(name: str, scope: anyio.CancelScope) -> None:
            with scope:
                await UplinkSlot(queue).acquire(name, 100)
                finished.append((name, round(anyio.current_time() - began, 2)))

        scopes = {name: anyio.CancelScope() for name in "abcd"}
        async with anyio.create_task_group() as tasks:
            for name, scope in scopes.items():
                tasks.start_soon(acquire, name, scope)
                await anyio.sleep(0.01)
            await anyio.sleep(0.3)
            scopes["b"].cancel()
        assert finished == [("a", 0.0), ("c", 0.75), ("d", 1.75)]

    run_fake(main)


def test_without_a_limit_no_slot_waits() -> None:
    async def main() -> None:
        began, queue = anyio.current_time(), FairQueue(bandwidth(None))
        for _ in range(10):
            await UplinkSlot(queue).acquire("a", 1 << 30)
        assert anyio.current_time() == began

    run_fake(main)


FAULTY_DOWNLOADERS = {
    "sends garbage": [b"garbage"],
    "does not begin with a PayloadRequest": [wire.ChunkRequest((1,))],
    "requests a chunk a thousand times": [wire.PayloadRequest, wire.ChunkRequest((1,) * 1000)],
    "requests another payload on the same stream": [wire.PayloadRequest, wire.PayloadRequest(bytes(32))],
    "sends chunks": [wire.PayloadRequest, wire.NotAvailable(1)],
    "sends a frame too long": [wire.PayloadRequest, bytes(wire.DOWNLOADER_LIMIT + 1)],
}


@pytest.mark.parametrize("messages", FAULTY_DOWNLOADERS.values(), ids=FAULTY_DOWNLOADERS.keys())
def test_a_downloader_that_breaks_the_protocol_is_reset(messages, tmp_path):
    async def story(evil, b, manifest) -> None:
        await b.fetch(manifest, tmp_path / "b")
        stream = await evil.open("b", PROTOCOL)
        for message in messages:
            message = wire.PayloadRequest(manifest.hash) if message is wire.PayloadRequest else message
            await stream.send(message if isinstance(message, bytes) else wire.encode(message))
        with pytest.raises(Unreachable):
            await drain(stream)

    run_fake(lambda: against(saying(), tmp_path, story))


def test_a_request_beyond_the_end_is_answered_with_not_available(tmp_path):
    async def story(evil, b, manifest) -> None:
        await b.fetch(manifest, tmp_path / "b")
        stream = await evil.open("b", PROTOCOL)
        await stream.send(wire.encode(wire.PayloadRequest(manifest.hash)))
        await stream.send(wire.encode(wire.ChunkRequest((256, 1000))))
        frames = [wire.decode_from_holder(await stream.receive(wire.HOLDER_LIMIT)) for _ in range(3)]
        assert isinstance(frames[0], wire.Have)
        assert frames[1:] == [wire.NotAvailable(256), wire.NotAvailable(1000)]

    run_fake(lambda: against(saying(), tmp_path, story))
