"""Gossip with a peer that reconnects while its old connection still seems open: after a power cut, or a kill -9 whose
reset was lost. The peer has the same key and another address."""

import asyncio
import contextlib
import threading

import pytest
import trio

from echo2._libp2p.peer.id import ID
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p import gossip
from echo2.p2p.libp2p import transport as libp2p
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from tests.support.libp2p_peers import LOOPBACK, new_peer, on_trio, running, until_connected


class Listener:
    """Records received messages."""

    def __init__(self, *peers: ThreadedPeer) -> None:
        self.received: set[bytes] = set()
        self._news = asyncio.Event()
        for peer in peers:
            peer.subscribe("heads", self._hear)

    async def _hear(self, peer: str, data: bytes) -> bool:
        self.received.add(data)
        self._news.set()
        return True

    async def hears(self, of: ThreadedPeer, data: bytes) -> None:
        """Publish repeatedly until received: messages sent before the mesh has formed are lost."""
        async with asyncio.timeout(60):
            while data not in self.received:
                self._news.clear()
                await of.publish("heads", data)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.5)


async def connections(transport, peer: str) -> int:
    return len(transport.connections.of(peer))


async def until_alone(one: ThreadedPeer, other: ThreadedPeer) -> None:
    async with asyncio.timeout(60):
        while await on_trio(one, lambda transport: connections(transport, other.peer_id)) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_peer_that_reconnects_before_its_old_connection_ends_sends_and_receives_gossip():
    key = generate_key()
    node, before, after = new_peer(), ThreadedPeer(key, [LOOPBACK]), ThreadedPeer(key, [LOOPBACK])
    at_node, at_coordinator = Listener(node), Listener(after)
    async with running(node):
        first = asyncio.create_task(before.run())
        await before.ready()
        await before.dial(await node.addresses())
        await at_node.hears(before, b"before")
        async with running(after):
            await after.dial(await node.addresses())
            await until_connected(after, node)
            first.cancel()
            await asyncio.wait([first])
            await until_alone(node, after)
            await at_node.hears(after, b"after")
            await at_coordinator.hears(node, b"from the node")


async def last_number(transport) -> int:
    return transport.pubsub.counter


async def test_a_restarted_peer_reuses_no_message_number():
    key = generate_key()
    node, before = new_peer(), ThreadedPeer(key, [LOOPBACK])
    at_node = Listener(node)
    async with running(node):
        async with running(before):
            await before.dial(await node.addresses())
            for number in range(10):
                await at_node.hears(before, b"before, %d" % number)
            used = await on_trio(before, last_number)
        async with running(after := ThreadedPeer(key, [LOOPBACK])):
            assert await on_trio(after, last_number) > used
            await after.dial(await node.addresses())
            await at_node.hears(after, b"after")


async def test_a_dead_connection_is_replaced_once_its_peer_opens_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(libp2p, "PING_ANSWER_SECONDS", 0.5)
    key, thaw = generate_key(), threading.Event()
    node, before, after = new_peer(), ThreadedPeer(key, [LOOPBACK]), ThreadedPeer(key, [LOOPBACK])
    at_node = Listener(node)

    async def freeze(transport) -> None:
        thaw.wait(120)

    async with running(node), running(before):
        await before.dial(await node.addresses())
        await at_node.hears(before, b"before")
        frozen = asyncio.ensure_future(on_trio(before, freeze))
        try:
            async with running(after):
                await after.dial(await node.addresses())
                await until_alone(node, after)
                await at_node.hears(after, b"after")
        finally:
            thaw.set()
            await frozen


async def test_a_gossip_stream_that_could_not_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gossip, "STREAM_POLL_SECONDS", 0.05)
    monkeypatch.setattr(gossip, "STREAM_RETRY_SECONDS", 0.1)
    node, coordinator = new_peer(), new_peer()
    at_node = Listener(node)
    failed = threading.Event()

    async def fail_once(transport) -> None:
        opening = transport.host.new_stream

        async def new_stream(peer: ID, protocols):
            if not failed.is_set() and any("meshsub" in protocol for protocol in protocols):
                failed.set()
                raise ValueError("no stream for no reason that upstream knows")
            return await opening(peer, protocols)

        transport.host.new_stream = new_stream
        await trio.lowlevel.checkpoint()

    async with running(node), running(coordinator):
        await on_trio(node, fail_once)
        await coordinator.dial(await node.addresses())
        await at_node.hears(coordinator, b"a head")
        assert failed.is_set()


async def test_gossip_of_a_peer_whose_clock_was_set_back_arrives():
    node, coordinator = new_peer(), new_peer()
    at_node = Listener(node)

    async def know_a_newer_record(transport) -> None:
        transport.host.get_peerstore().peer_record_map[ID.from_string(coordinator.peer_id)].seq = 1 << 62
        await trio.lowlevel.checkpoint()

    async with running(node, coordinator):
        await at_node.hears(coordinator, b"before")
        await on_trio(node, know_a_newer_record)
        await at_node.hears(coordinator, b"after")
