"""A raw peer on the chunk protocol, beside honest peers: it sends the bytes that a test chooses."""

from pathlib import Path

import anyio

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.swarm import messages as wire
from echo2.p2p.swarm.exchange import PROTOCOL
from tests.support.peers import payload_file, peers

MB = 1_000_000


async def against(handler, tmp_path: Path, story) -> None:
    """Run `story` with a raw peer `evil` whose chunk streams `handler` answers, an honest `good` one, and `b`, which
    fetches."""
    manifest = payload_file(tmp_path / "a", 5 * MB)
    network = MemoryNetwork(1, link=Link(bandwidth=MB))
    evil = network.transport("evil")
    evil.handle(PROTOCOL, handler)
    async with peers(network, "good", "b") as (good, b), anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: evil.run(task_status.started))
        await evil.dial(await b.addresses())
        await good.share(manifest, tmp_path / "a")
        await story(evil, b, manifest)
        tasks.cancel_scope.cancel()


def saying(*messages):
    """Return a holder that answers a PayloadRequest with these frames, and then is silent."""

    async def handler(stream) -> None:
        await stream.receive(1000)
        for message in messages:
            await stream.send(message if isinstance(message, bytes) else wire.encode(message))
        await drain(stream)

    return handler


async def drain(stream) -> None:
    while await stream.receive(wire.HOLDER_LIMIT) is not None:
        pass
