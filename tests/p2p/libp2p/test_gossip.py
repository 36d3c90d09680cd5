"""Gossip over libp2p: in a star, where each peer is connected to the publisher alone, along a chain, and with a peer
that reconnects while its old connection still seems open."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest
import trio

from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p import transport as libp2p
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.peer.peer import Peer
from tests.support.libp2p_peers import LOOPBACK, new_peer, on_trio, running, until_connected

TOPIC, OTHER_TOPIC = "heads", "heads of another author"


class Host:
    """A peer on trio that records the messages that it receives."""

    def __init__(self, seed: int, listen: list[str]) -> None:
        self.received: set[bytes] = set()
        self.peer = Peer(LibP2PTransport(generate_key(), listen), seed=seed)
        self.peer.subscribe(TOPIC, self._on_message)

    async def _on_message(self, sender: str, data: bytes) -> bool:
        self.received.add(data)
        return True


@contextlib.asynccontextmanager
async def star(leaves: int) -> AsyncIterator[tuple[Host, list[Host]]]:
    hub, others = Host(0, [LOOPBACK]), [Host(number, []) for number in range(1, leaves + 1)]
    async with trio.open_nursery() as nursery:
        for host in (hub, *others):
            nursery.start_soon(host.peer.run)
            await host.peer.ready()
        for host in others:
            await host.peer.dial(await hub.peer.addresses())
        while len(await hub.peer.peers()) < leaves:  # noqa: ASYNC110
            await trio.sleep(0.01)
        yield hub, others
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [30, 200])
def test_every_peer_of_a_star_hears_every_head(leaves: int) -> None:
    """Figures: `python -m benchmarks.broadcast.gossip --star 200`."""

    async def main() -> None:
        async with star(leaves) as (hub, others):
            for number in range(5):
                data = b"head %d" % number
                await hub.peer.publish(TOPIC, data)
                with trio.fail_after(60):
                    while not all(data in host.received for host in others):  # noqa: ASYNC110
                        await trio.sleep(0.05)

    trio.run(main)


class Listener:
    """Records what each of some peers receives."""

    def __init__(self, *peers: ThreadedPeer) -> None:
        self.received: set[tuple[str, bytes]] = set()
        self._news = asyncio.Event()
        for peer in peers:

            async def hear(sender: str, data: bytes, peer: ThreadedPeer = peer) -> bool:
                self.received.add((peer.peer_id, data))
                self._news.set()
                return True

            peer.subscribe(TOPIC, hear)
            peer.subscribe(OTHER_TOPIC, hear)

    async def hears(self, author: ThreadedPeer, data: bytes, *listeners: ThreadedPeer, topic: str = TOPIC) -> None:
        """Publish once, and wait until all listeners have received it."""
        await author.publish(topic, data)
        async with asyncio.timeout(60):
            while not {(one.peer_id, data) for one in listeners} <= self.received:
                self._news.clear()
                await self._news.wait()


async def test_a_message_travels_along_a_chain() -> None:
    chain = [new_peer() for _ in range(4)]
    listener = Listener(*chain[1:])
    async with running(*chain, chained=True):
        for data in (b"first", b"second"):
            await listener.hears(chain[0], data, *chain[1:])


async def connections(transport, peer: str) -> int:
    return len(transport.connections.of(peer))


async def until_alone(one: ThreadedPeer, other: ThreadedPeer) -> None:
    async with asyncio.timeout(60):
        while await on_trio(one, lambda transport: connections(transport, other.peer_id)) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_peer_that_reconnects_before_its_old_connection_ends_sends_and_receives_gossip() -> None:
    key = generate_key()
    node, before, after = new_peer(), ThreadedPeer(key, [LOOPBACK]), ThreadedPeer(key, [LOOPBACK])
    listener = Listener(node, after)
    async with running(node):
        first = asyncio.create_task(before.run())
        await before.ready()
        await before.dial(await node.addresses())
        await listener.hears(before, b"before", node)
        async with running(after):
            await after.dial(await node.addresses())
            await until_connected(after, node)
            first.cancel()
            await asyncio.wait([first])
            await until_alone(node, after)
            await listener.hears(after, b"after", node)
            await listener.hears(node, b"from the node", after, topic=OTHER_TOPIC)


async def test_a_dead_connection_is_replaced_once_its_peer_opens_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libp2p, "PING_ANSWER_SECONDS", 0.5)
    key, thaw = generate_key(), threading.Event()
    node, before, after = new_peer(), ThreadedPeer(key, [LOOPBACK]), ThreadedPeer(key, [LOOPBACK])
    listener = Listener(node)

    async def freeze(transport) -> None:
        thaw.wait(120)

    async with running(node), running(before):
        await before.dial(await node.addresses())
        await listener.hears(before, b"before", node)
        frozen = asyncio.ensure_future(on_trio(before, freeze))
        try:
            async with running(after):
                await after.dial(await node.addresses())
                await until_alone(node, after)
                await listener.hears(after, b"after", node)
        finally:
            thaw.set()
            await frozen
