"""Replayed gossip: old content under new message ids is handled once and not forwarded."""

import asyncio
from collections import Counter
from pathlib import Path

from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.memory.transport import MemoryNetwork
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, make_node, until
from tests.support.libp2p_peers import new_peer, running
from tests.support.swarm import working

TOPIC, AGAIN = "heads", 5


class Ear:
    """A peer and the messages that it has received."""

    def __init__(self) -> None:
        self.peer, self.received = new_peer(), Counter[bytes]()

    def listen(self) -> ThreadedPeer:
        self.peer.subscribe(TOPIC, self._hear)
        return self.peer

    async def _hear(self, peer: str, data: bytes) -> bool:
        self.received[data] += 1
        return True

    async def hears(self, data: bytes) -> None:
        async with asyncio.timeout(30):
            while not self.received[data]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_head_replayed_as_gossip_under_new_ids_is_handled_and_forwarded_once() -> None:
    """On 439044d the third peer of this chain receives each of five replays."""
    stranger, middle, last = Ear(), Ear(), Ear()
    async with running(stranger.listen(), middle.listen(), last.listen(), chained=True):
        number = 0
        while not last.received:  # until all know of each other
            number += 1
            await stranger.peer.publish(TOPIC, b"hello %d" % number)
            await asyncio.sleep(0.5)
        for _ in range(AGAIN):
            await stranger.peer.publish(TOPIC, b"a head")
        await stranger.peer.publish(TOPIC, b"the last")
        for ear in (middle, last):
            await ear.hears(b"the last")
            await ear.hears(b"a head")
    assert middle.received[b"a head"] == AGAIN
    assert last.received[b"a head"] == 1


def test_a_node_forwards_only_heads_newer_than_those_it_has(tmp_path: Path) -> None:
    """On 439044d each of them is forwarded."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: node.daemon.engine.current)
                follower = node.daemon.follower
                assert not await follower.hear("stranger", coordinator.head)
                assert not await follower.hear("stranger", coordinator.head)

    run_fake(main)
