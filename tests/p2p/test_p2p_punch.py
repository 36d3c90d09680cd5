"""From a relayed connection to a direct one, between peers of one machine. What this does not show is a hole through a
real NAT: here each peer could have dialled the other at once."""

import pytest
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from p2p import libp2p_punch
from p2p.errors import Unreachable
from p2p.libp2p_punch import ADDRESSES, _usable
from tests.p2p.test_p2p_circuit import behind_a_relay, relayed, until


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(libp2p_punch, "GRACE", 0.5)


async def test_a_relayed_connection_becomes_a_direct_one_and_the_relayed_one_goes():
    async with behind_a_relay() as (source, relay, target):
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id

        async def direct() -> bool:
            return await source.way(target.peer_id) == await target.way(source.peer_id) == "direct"

        await until(direct)
        assert await source.request(target.peer_id, "echo", b"x", timeout=10)

        async def circuits() -> bool:
            return await relay._call(lambda peer: _circuits(peer)) == 0

        await until(circuits)
        assert await source.request(target.peer_id, "echo", b"x", timeout=10), "the direct one carries on"
        assert await target.request(source.peer_id, "echo", b"y", timeout=10)


async def _circuits(peer) -> int:
    return peer._transport._relay.book.circuits


async def test_where_no_direct_way_is_found_the_relayed_one_stays(monkeypatch):
    monkeypatch.setattr(libp2p_punch, "DIAL_TIMEOUT", 0.2)
    monkeypatch.setattr(libp2p_punch, "SETTLE", 0.1)
    nowhere = HolePunch(type=HolePunch.CONNECT, ObsAddrs=[Multiaddr("/ip4/127.0.0.1/tcp/1").to_bytes()])
    monkeypatch.setattr(libp2p_punch.Punch, "_connect", lambda self: nowhere)
    lead, came_of_it = libp2p_punch.Punch.lead, []

    async def led(self, peer: str) -> bool:
        came_of_it.append(await lead(self, peer))
        return came_of_it[-1]

    monkeypatch.setattr(libp2p_punch.Punch, "lead", led)
    async with behind_a_relay() as (source, relay, target):
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id

        async def tried() -> bool:
            return bool(came_of_it)

        await until(tried)
        assert came_of_it == [False]
        assert await source.way(target.peer_id) == "relay"
        assert await source.request(target.peer_id, "echo", b"x", timeout=10)


def test_only_a_few_direct_addresses_of_a_peer_are_dialled():
    named = ["/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/udp/1/quic-v1", "/dns4/victim.example/tcp/1", "/ip6/::1/tcp/2"]
    packed = [b"garbage", *(Multiaddr(address).to_bytes() for address in named)]
    message = HolePunch(type=HolePunch.CONNECT, ObsAddrs=packed)
    assert _usable(message) == ["/ip4/192.0.2.1/tcp/1", "/ip6/::1/tcp/2"]
    many = [Multiaddr(f"/ip4/192.0.2.1/tcp/{port}").to_bytes() for port in range(1, 1000)]
    assert len(_usable(HolePunch(type=HolePunch.CONNECT, ObsAddrs=many))) == ADDRESSES
    with pytest.raises(Unreachable):
        _usable(HolePunch(type=HolePunch.SYNC))
