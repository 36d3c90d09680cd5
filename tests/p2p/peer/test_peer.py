"""A peer on the in-memory network and a fake clock: its limit on requests, its gossip, and how it starts."""

from itertools import pairwise

import anyio
import pytest

from echo2.p2p.errors import LocalNetworkFault
from echo2.p2p.limits.request_slots import PER_PEER
from echo2.p2p.memory.transport import Link, MemoryNetwork
from echo2.p2p.peer.peer import Peer
from tests.support.clock import run_fake
from tests.support.floods import serving
from tests.support.peers import peers, running


def test_one_peer_has_no_more_than_its_share_of_requests_in_progress():
    working, most = 0, 0

    async def busy(peer: str, request: bytes) -> bytes:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await anyio.sleep(1)
        working -= 1
        return b""

    async def main():
        network = MemoryNetwork(1)
        server = serving(network, echo=busy)
        client = Peer(network.transport("client"), seed=1)
        async with running(server, client), anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as many:
                for _ in range(3 * PER_PEER):
                    many.start_soon(lambda: client.request("server", "echo", b"", timeout=10))
            tasks.cancel_scope.cancel()

    run_fake(main)
    assert most == PER_PEER


def gossipers(network: MemoryNetwork, names: str, verdict: dict[str, bool], heard: list[tuple[str, str, bytes]]):
    new_peers = []
    for name in names:
        peer = Peer(network.transport(name), seed=0)

        async def hear(sender: str, data: bytes, name: str = name) -> bool:
            heard.append((name, sender, data))
            return verdict.get(name, True)

        peer.subscribe("heads", hear)
        new_peers.append(peer)
    return new_peers


async def gossiped_along_a_line(network: MemoryNetwork, chain: list[Peer]) -> None:
    async with running(*chain, connect=False):
        for one, two in pairwise(chain):
            await one.dial(await two.addresses())
        await chain[0].publish("heads", b"head")
        await anyio.sleep(10)


def test_gossip_reaches_peers_that_are_not_neighbours_once_each():
    heard: list[tuple[str, str, bytes]] = []
    network = MemoryNetwork(1, link=Link(delay=0.1))
    run_fake(lambda: gossiped_along_a_line(network, gossipers(network, "abcd", {}, heard)))
    assert heard == [("b", "a", b"head"), ("c", "b", b"head"), ("d", "c", b"head")]


def test_gossip_that_a_peer_judges_invalid_goes_no_further():
    heard: list[tuple[str, str, bytes]] = []
    network = MemoryNetwork(1)
    run_fake(lambda: gossiped_along_a_line(network, gossipers(network, "abcd", {"b": False}, heard)))
    assert heard == [("b", "a", b"head")]


def test_gossip_too_large_is_refused_where_it_starts():
    async def main():
        async with peers(MemoryNetwork(1), "a") as (a,):
            with pytest.raises(LocalNetworkFault):
                await a.publish("heads", bytes(16 * 1024 + 1))

    run_fake(main)


def test_a_failure_to_listen_is_raised_by_ready_too():
    network = MemoryNetwork(1)
    transport = network.transport("a")

    async def broken(listening) -> None:
        raise LocalNetworkFault("the port is taken: choose another")

    transport.run = broken  # type: ignore[method-assign]
    peer = Peer(transport, seed=0)

    async def main():
        with pytest.raises(LocalNetworkFault, match="port"):
            await peer.run()
        with pytest.raises(LocalNetworkFault, match="port"):
            await peer.ready()

    run_fake(main)
