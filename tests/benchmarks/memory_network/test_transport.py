"""The in-memory network: loss, partitions, killed and moved peers."""

import anyio
import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.errors import LocalNetworkFault, Unreachable
from echo2.p2p.multiaddr import peer_of
from echo2.p2p.peer.peer import Peer
from tests.support.clock import on_fake_clock, run_fake
from tests.support.peers import peers, running


def test_a_lossy_network_loses_dials_alike_for_the_same_seed():
    def fates(seed: int) -> list[bool]:
        async def main() -> list[bool]:
            network = MemoryNetwork(seed, link=Link(loss=0.5))
            async with peers(network, *"abcdefgh", connect=False) as all_peers:
                fates_seen = []
                for other in all_peers[1:]:
                    try:
                        await all_peers[0].dial(await other.addresses())
                        fates_seen.append(True)
                    except Unreachable:
                        fates_seen.append(False)
                return fates_seen

        return run_fake(main)

    assert fates(3) == fates(3)
    assert {True, False} <= set(fates(3))


@on_fake_clock
async def test_a_partition_separates_its_groups_until_it_heals() -> None:
    network = MemoryNetwork(1, patience=5)
    async with peers(network, "a", "b", "c", connect=False) as (a, b, c):
        network.partition(["a"], ["b"])
        began = anyio.current_time()
        with pytest.raises(Unreachable):
            await a.dial(await b.addresses())
        assert anyio.current_time() - began == pytest.approx(5), "the dial takes the whole patience"
        assert await a.dial(await c.addresses()) == "c", "a peer in no group reaches all"
        network.heal()
        assert await a.dial(await b.addresses()) == "b"


@on_fake_clock
async def test_a_moved_peer_is_reached_at_its_new_address_alone() -> None:
    network = MemoryNetwork(1)
    async with peers(network, "a", "b") as (a, b):
        before = await b.addresses()
        network.move("b")
        assert await a.peers() == await b.peers() == []
        with pytest.raises(Unreachable):
            await a.dial(before)
        assert await a.dial(await b.addresses()) == "b"
        assert peer_of(before[0]) == "b"


@on_fake_clock
async def test_a_killed_peer_fails_later_calls_and_its_id_may_return() -> None:
    network = MemoryNetwork(1)
    async with peers(network, "a", "b") as (a, b):
        with pytest.raises(LocalNetworkFault, match="already in this network"):
            network.transport("b")
        network.kill("b")
        assert await a.peers() == []
        with pytest.raises(Unreachable):
            await b.dial(await a.addresses())
        async with running(Peer(network.transport("b"), seed=2), connect=False) as _:
            assert await a.dial(network.transports["b"].addresses()) == "b"


@on_fake_clock
async def test_an_uplink_is_shared_by_all_links_of_a_peer() -> None:
    network = MemoryNetwork(1, link=Link(delay=0.5, bandwidth=100.0))
    network.set_uplink("a", 100.0)
    assert network.arrival("a", "b", 100) == pytest.approx(anyio.current_time() + 1.5)
    assert network.arrival("a", "c", 100) == pytest.approx(anyio.current_time() + 2.5)
    assert network.arrival("b", "c", 100) == pytest.approx(anyio.current_time() + 1.5)
