"""The relay over real libp2p on loopback: its quotas, its refusals, and malformed requests."""

import asyncio
import contextlib
import time

import pytest
import trio

from echo2._libp2p.host.exceptions import StreamFailure
from echo2._libp2p.network.stream.exceptions import StreamError
from echo2._libp2p.peer.id import ID
from echo2.p2p.errors import Unreachable
from echo2.p2p.limits.relay_quota import RelayLimits
from tests.support.libp2p_peers import echo, new_peer, on_trio, running
from tests.support.peers import payload_file
from tests.support.relays import behind_a_relay, holders, relayed, until

MB = 1_000_000

pytestmark = pytest.mark.usefixtures("no_upgrade")


@pytest.mark.slow
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


async def reserved(transport) -> list[str]:
    return holders(transport.relay_service.table, trio.current_time())


async def test_a_full_relay_refuses_with_the_reason_and_keeps_serving():
    async with behind_a_relay(RelayLimits(reservations=1)) as (source, relay, target):
        with pytest.raises(Unreachable, match="resource limit exceeded"):
            await source.reserve(await relay.addresses())
        assert await source.dial(relayed(target, await relay.addresses())) == target.peer_id


async def test_a_peer_without_a_reservation_is_not_reached_through_the_relay():
    async with behind_a_relay() as (source, relay, target):
        with pytest.raises(Unreachable):
            await target.dial(relayed(source, await relay.addresses()))


@pytest.mark.slow
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
    "a connect without a peer": b"\x02\x08\x01",
    "a connect to a peer id of garbage": b"\x09\x08\x01\x12\x05\x0a\x03abc",
}


@pytest.mark.slow
async def test_a_relay_survives_malformed_and_excessive_requests():
    async with behind_a_relay() as (source, relay, target):
        await source.dial(await relay.addresses())

        async def abuse(transport) -> None:
            peer = ID.from_string(relay.peer_id)
            for data in ABUSE.values():
                for close in (True, False):
                    stream = await transport.host.new_stream(peer, [HOP])
                    await stream.write(data)
                    await (stream.close() if close else stream.reset())

            async def ask() -> None:  # many reservations of one peer, at once
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
            return set(await on_trio(relay, reserved)) <= {source.peer_id, target.peer_id}

        await until(lives)
        other = new_peer()
        other.serve("echo", echo, limit=100)
        async with running(other):
            assert await other.dial(relayed(target, await relay.addresses())) == target.peer_id
            assert await other.request(target.peer_id, "echo", b"x", timeout=60)
