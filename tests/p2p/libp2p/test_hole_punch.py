"""Upgrades of relayed connections to direct ones, between peers of one machine. These tests do not show a hole through
a real NAT: here each peer could have dialled the other at once."""

from unittest import mock

import pytest

from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.peer.id import ID
from echo2._libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from echo2.p2p.errors import Unreachable
from echo2.p2p.libp2p import hole_punch
from echo2.p2p.libp2p.hole_punch import ADDRESSES, usable
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.relay_quota import PUNCH_BURST
from tests.support.libp2p_peers import on_trio
from tests.support.relays import behind_a_relay, relayed, until


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(hole_punch, "RELAY_GRACE_SECONDS", 0.5)


async def test_a_relayed_connection_becomes_a_direct_one_and_the_relayed_one_is_closed():
    async with behind_a_relay() as (source, relay, target):
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id

        async def direct() -> bool:
            near, far = await source.routes(), await target.routes()
            return near.get(target.peer_id) == far.get(source.peer_id) == "direct"

        await until(direct)
        assert await source.request(target.peer_id, "echo", b"x", timeout=60)

        async def circuits() -> bool:
            return await on_trio(relay, _circuits) == 0

        await until(circuits)
        assert await source.request(target.peer_id, "echo", b"x", timeout=60), "the direct one carries on"
        assert await target.request(source.peer_id, "echo", b"y", timeout=60)


async def _circuits(transport) -> int:
    return transport.relay_service.table.circuits


async def test_the_relayed_connection_stays_when_no_direct_one_can_be_made(monkeypatch):
    monkeypatch.setattr(hole_punch, "DIAL_TIMEOUT", 0.2)
    monkeypatch.setattr(hole_punch, "DIAL_SETTLE_SECONDS", 0.1)
    nowhere = HolePunch(type=HolePunch.CONNECT, ObsAddrs=[Multiaddr("/ip4/127.0.0.1/tcp/1").to_bytes()])
    monkeypatch.setattr(hole_punch.HolePuncher, "_connect", lambda self: nowhere)
    lead, came_of_it = hole_punch.HolePuncher.upgrade, []

    async def led(self, peer: str) -> bool:
        came_of_it.append(await lead(self, peer))
        return came_of_it[-1]

    monkeypatch.setattr(hole_punch.HolePuncher, "upgrade", led)
    async with behind_a_relay() as (source, relay, target):
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id

        async def tried() -> bool:
            return bool(came_of_it)

        await until(tried)
        assert came_of_it == [False]
        assert (await source.routes())[target.peer_id] == "relay"
        assert await source.request(target.peer_id, "echo", b"x", timeout=60)


def connect(*addresses: str) -> HolePunch:
    packed = [b"garbage", *(Multiaddr(address).to_bytes() for address in addresses)]
    return HolePunch(type=HolePunch.CONNECT, ObsAddrs=packed)


def test_only_a_few_direct_addresses_of_a_peer_are_dialled():
    good = ["/ip4/10.0.0.1/tcp/4310", "/ip6/::1/tcp/4310"]
    bad = ["/ip4/10.0.0.1/udp/1/quic-v1", "/dns4/victim.example/tcp/4310", "/ip4/10.0.0.1/tcp/25"]
    assert usable(connect(*bad, *good), "peer") == good
    many = [f"/ip4/10.0.0.1/tcp/{port}" for port in range(2000, 3000)]
    assert len(usable(connect(*many), "peer")) == ADDRESSES - 1
    with pytest.raises(Unreachable):
        usable(HolePunch(type=HolePunch.SYNC), "peer")


def test_a_public_subnet_is_dialled_at_two_addresses():
    named = [f"/ip4/8.8.8.{number}/tcp/4310" for number in range(4)]
    assert usable(connect(*named, "/ip4/9.9.9.9/tcp/4310"), "peer") == [*named[:2], "/ip4/9.9.9.9/tcp/4310"]


def test_upgrade_rounds_beyond_the_limit_per_peer_are_refused():
    punch = hole_punch.HolePuncher(mock.Mock(), mock.Mock(), lambda peer: Origin(peer, peer))
    one, other = (ID(b"\x00$\x08\x01\x12 " + bytes([number]) * 32) for number in (1, 2))
    with mock.patch("trio.current_time", return_value=0.0):
        for _ in range(int(PUNCH_BURST)):
            punch.charge_round(one)
        with pytest.raises(Unreachable):
            punch.charge_round(one)
        punch.charge_round(other)
