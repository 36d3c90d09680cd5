"""Relays over real libp2p on loopback: two peers that know only the relay, and what a relay refuses."""

import asyncio
import contextlib
import time

import pytest
import trio
from libp2p.host.exceptions import StreamFailure
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID

from p2p.errors import Unreachable
from p2p.libp2p.hole_punch import HolePuncher
from p2p.limits.relay_quota import RelayLimits
from tests.support.libp2p_peers import echo, new_peer, on_trio, running
from tests.support.peers import payload_file
from tests.support.relays import behind_a_relay, relayed, until

MB = 1_000_000


@pytest.fixture(autouse=True)
def no_upgrade(monkeypatch):
    """On loopback a direct connection would take over at once (test_hole_punch.py)."""

    async def lead(self, peer: str) -> bool:
        return False

    monkeypatch.setattr(HolePuncher, "upgrade", lead)


async def test_two_peers_that_know_only_the_relay_ask_each_other():
    async with behind_a_relay() as (source, relay, target):
        address = relayed(target, await relay.addresses())
        assert address[0] in await target.addresses()
        assert await source.dial(address) == target.peer_id
        assert await source.route(target.peer_id) == "relay"
        assert await source.request(target.peer_id, "echo", b"x", timeout=60) == source.peer_id.encode() + b":x"
        assert await target.request(source.peer_id, "echo", b"y", timeout=60) == target.peer_id.encode() + b":y"


async def test_a_chunk_fetch_through_a_relay_is_verified_and_keeps_to_the_relays_rate(tmp_path):
    limits = RelayLimits(rate=4 * MB)
    async with behind_a_relay(limits) as (source, relay, target):
        manifest = payload_file(tmp_path / "a", 4 * MB)
        await target.share(manifest, tmp_path / "a")
        await source.dial(relayed(target, await relay.addresses()))
        began = time.monotonic()
        await source.fetch(manifest, tmp_path / "b")
        took = time.monotonic() - began
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        assert took >= 0.6, "the relay passed more than its rate"
        assert await on_trio(relay, passed) >= 4 * MB


async def passed(transport) -> int:
    return transport.relay_service.bytes_relayed


async def holders(transport) -> list[str]:
    return transport.relay_service.table.holders(trio.current_time())


async def end_of_reservation(transport) -> float:
    [(end, _)] = transport.relay_service.table._reservations.values()
    return end


async def test_gossip_passes_a_relay():
    heard: list[bytes] = []

    async def hear(peer: str, data: bytes) -> bool:
        heard.append(data)
        return True

    source, relay, target = new_peer(), new_peer(relay=RelayLimits()), new_peer()
    for peer in (source, target):
        peer.subscribe("news", hear)
    async with running(source), running(relay), running(target):
        await target.reserve(await relay.addresses())
        await source.dial(relayed(target, await relay.addresses()))

        async def arrived() -> bool:
            await source.publish("news", b"head")
            await asyncio.sleep(0.3)
            return len(heard) >= 1

        await until(arrived)


async def test_a_reservation_is_renewed_before_it_ends():
    async with behind_a_relay(RelayLimits(life=3.0)) as (source, relay, target):
        ends = {await on_trio(relay, end_of_reservation)}

        async def renewed_twice() -> bool:
            ends.add(await on_trio(relay, end_of_reservation))
            return len(ends) >= 3

        await until(renewed_twice)
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id


async def test_a_released_reservation_is_not_renewed_and_not_announced():
    async with behind_a_relay(RelayLimits(life=1.0)) as (_, relay, target):
        await target.release(relay.peer_id)
        assert not [address for address in await target.addresses() if "p2p-circuit" in address]

        async def gone() -> bool:
            return await on_trio(relay, holders) == []

        await until(gone)


async def test_a_relay_that_was_lost_is_dialled_again_and_the_reservation_made_anew():
    async with behind_a_relay() as (source, relay, target):
        await on_trio(relay, lambda transport: transport.drop(target.peer_id))

        async def back() -> bool:
            return target.peer_id in await relay.peers() and await on_trio(relay, holders) == [target.peer_id]

        await until(back)
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id


async def test_who_relays_nothing_refuses_a_reservation():
    a, b = new_peer(), new_peer()
    async with running(a), running(b):
        with pytest.raises(Unreachable, match="is no relay"):
            await a.reserve(await b.addresses())


async def test_a_full_relay_says_so_and_lives():
    async with behind_a_relay(RelayLimits(reservations=1)) as (source, relay, target):
        with pytest.raises(Unreachable, match="resource limit exceeded"):
            await source.reserve(await relay.addresses())
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id


async def test_nobody_is_reached_through_a_relay_where_he_has_no_reservation():
    async with behind_a_relay() as (source, relay, target):
        with pytest.raises(Unreachable):
            await target.dial(relayed(source, await relay.addresses()))


async def test_a_circuit_that_is_used_up_ends_and_can_be_dialled_again(tmp_path):
    async with behind_a_relay(RelayLimits(data=MB, rate=50 * MB)) as (source, relay, target):
        manifest = payload_file(tmp_path / "a", 3 * MB)
        await target.share(manifest, tmp_path / "a")
        address = relayed(target, await relay.addresses())
        dials = 0

        async def dial_when_lost() -> None:
            nonlocal dials
            while True:
                if target.peer_id not in await source.peers():
                    await source.dial(address)
                    dials += 1
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            dialling = group.create_task(dial_when_lost())
            await source.fetch(manifest, tmp_path / "b")
            dialling.cancel()
        assert dials >= 4, "more than a circuit's bytes passed"


HOP = "/libp2p/circuit/relay/0.2.0/hop"
ABUSE = {
    "nothing": b"",
    "no length": b"\xff" * 20,
    "a length beyond the limit": b"\xff\xff\xff\x7f",
    "no protobuf": b"\x05hello",
    "an unknown message": b"\x02\x08\x02",
    "a connect to nobody": b"\x02\x08\x01",
    "a connect to a peer id of garbage": b"\x09\x08\x01\x12\x05\x0a\x03abc",
}


async def test_a_relay_survives_whatever_a_stranger_asks():
    async with behind_a_relay() as (source, relay, target):
        await source.dial(await relay.addresses())

        async def abuse(transport) -> None:
            peer = ID.from_string(relay.peer_id)
            for data in ABUSE.values():
                for close in (True, False):
                    stream = await transport.host.new_stream(peer, [HOP])
                    await stream.write(data)
                    await (stream.close() if close else stream.reset())

            async def ask() -> None:  # many reservations of one stranger, at once
                for _ in range(5):
                    with contextlib.suppress(StreamError, StreamFailure):
                        stream = await transport.host.new_stream(peer, [HOP])
                        await stream.write(b"\x02\x08\x00")
                        await stream.read(1)
                        await stream.reset()

            async with trio.open_nursery() as nursery:
                for _ in range(40):
                    nursery.start_soon(ask)

        await on_trio(source, abuse)

        async def lives() -> bool:
            return set(await on_trio(relay, holders)) <= {source.peer_id, target.peer_id}

        await until(lives)
        other = new_peer()
        other.serve("echo", echo, limit=100)
        async with running(other):
            assert await other.dial(relayed(target, await relay.addresses())) == target.peer_id
            assert await other.request(target.peer_id, "echo", b"x", timeout=60)
