"""Peers on an in-memory network, running: `async with peers(network, "a", "b") as (a, b)`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.local_addresses import listenable
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.peer.peer import Peer
from echo2.p2p.swarm.manifest import manifest_of

IP6 = pytest.param(
    "/ip6/::1/tcp/0", marks=pytest.mark.skipif(not listenable(["/ip6/::1/tcp/0"]), reason="this machine has no IPv6")
)


@asynccontextmanager
async def running(*network_peers: Peer, connect: bool = True) -> AsyncIterator[None]:
    """Run these peers, each connected with all others unless `connect` is False."""
    async with anyio.create_task_group() as tasks:
        for peer in network_peers:
            tasks.start_soon(peer.run)
        for peer in network_peers:
            await peer.ready()
        if connect:
            for number, peer in enumerate(network_peers):
                for other in network_peers[:number]:
                    await peer.dial(await other.addresses())
        yield
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def peers(
    network: MemoryNetwork, *names: str, connect: bool = True, uplink: float | None = None
) -> AsyncIterator[list[Peer]]:
    """Run one `Peer` per name. `uplink`: the limit of each, bytes per second."""
    network_peers = [Peer(network.transport(name), seed=number, uplink=uplink) for number, name in enumerate(names)]
    async with running(*network_peers, connect=connect):
        yield network_peers


def payload_file(path: Path, length: int, seed: int = 0) -> Manifest:
    """Write a file of random bytes; return its manifest."""
    path.write_bytes(Random(seed).randbytes(length))
    return manifest_of(path)
