"""Holders that break the protocol, or are of no use, and the fetch that goes on without them."""

import anyio
import pytest

from echo2.p2p.swarm import messages as wire
from tests.support.chunk_streams import MB, against, saying
from tests.support.clock import run_fake

FAULTY_HOLDERS = {
    "sends garbage": [b"garbage"],
    "sends a request": [wire.ChunkRequest((1,))],
    "has a bitmap too long": [wire.Have(bytes(1000))],
    "has a bit beyond the end": [wire.Have(b"\xff" * 33)],
    "has chunks beyond the end": [wire.HaveMore((5000,))],
    "sends an unrequested chunk": [wire.Chunk(0, (), b"x")],
    "sends a frame too long": [bytes(wire.HOLDER_LIMIT + 1)],
}


@pytest.mark.parametrize("messages", FAULTY_HOLDERS.values(), ids=FAULTY_HOLDERS.keys())
def test_a_holder_that_breaks_the_protocol_is_dropped_and_the_fetch_goes_on(messages, tmp_path):
    async def story(evil, b, manifest) -> None:
        await b.fetch(manifest, tmp_path / "b")
        assert "b" not in evil.peers()
        assert (await b.traffic()).received_by_peer == {"good": 5 * MB}

    run_fake(lambda: against(saying(*messages), tmp_path, story))


LAME_HOLDERS = {
    "has every chunk and sends none": [wire.Have(b"\xff" * 32)],
    "retracts every chunk": [wire.Have(b"\xff" * 32), *(wire.NotAvailable(i) for i in range(256))],
    "has no chunk": [wire.Have(bytes(32))],
    "is silent": [],
}


@pytest.mark.parametrize("messages", LAME_HOLDERS.values(), ids=LAME_HOLDERS.keys())
def test_a_holder_that_is_no_use_does_not_stop_a_fetch(messages, tmp_path):
    async def story(evil, b, manifest) -> None:
        start = anyio.current_time()
        await b.fetch(manifest, tmp_path / "b")
        assert anyio.current_time() - start < 12
        assert "b" in evil.peers()

    run_fake(lambda: against(saying(*messages), tmp_path, story))
