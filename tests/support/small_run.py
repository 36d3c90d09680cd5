"""A run of a fake coordinator and its nodes on one in-memory network: the prologue that tests of a node share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.peer.peer import Peer
from tests.support.fake_coordinator import FakeCoordinator, Node, make_node
from tests.support.swarm import working


class SmallRun:
    """One run, whose files lie under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = MemoryNetwork(0)
        self.coordinator = FakeCoordinator(folder / "coordinator")

    @property
    def open_leases(self) -> set[bytes]:
        """Leases that were given and not submitted."""
        return set(self.coordinator.leases) - set(self.coordinator.submitted)

    def node(self, name: str = "node", *, invite: Invite | None = None, **settings: Any) -> Node:
        """Make a node; `settings` as of `make_node`. The same name with the same key is the same node again."""
        return make_node(self.network, self.folder / name, invite or self.coordinator.invite(), **settings)

    @asynccontextmanager
    async def serving(self, *, published: bool = True) -> AsyncIterator[Peer]:
        """Run the coordinator until the block ends. `published`: whether it has version 0."""
        async with self.coordinator.serving(self.network) as peer:
            if published:
                await self.coordinator.publish(0)
            yield peer

    @asynccontextmanager
    async def working(self, name: str = "node", **settings: Any) -> AsyncIterator[Node]:
        """Run the coordinator and one node of it until the block ends."""
        async with self.serving():
            node = self.node(name, **settings)
            async with working(node):
                yield node
