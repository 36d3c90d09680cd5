"""A client of benchmarks/attacks/ that lies to the coordinator of a test, over real libp2p."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from benchmarks.attacks.attack_client import ENGINE, Client, Target
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from tests.faults.processes import Coordinator


@asynccontextmanager
async def liar_at(coordinator: Coordinator, engine_class: str = ENGINE) -> AsyncIterator[Client]:
    """Connect and introduce a stranger with a new key. `engine_class`: its own."""
    key, invite, place = generate_key(), coordinator.invite(), coordinator.folder
    network = ThreadedPeer(key, ["/ip4/127.0.0.1/tcp/0"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(network.run)
        await network.ready()
        peer = await network.dial(Invite.from_text(invite).addresses)
        client = Client(Target(invite, place.model, place.store / "snapshots"), network, key, peer, engine_class)
        await client.hello()
        yield client
        tasks.cancel_scope.cancel()
