"""The limit on connections, and bans: for repeated protocol violations, never for slow or unlucky peers."""

import asyncio
import contextlib

import pytest
import trio

from echo2._libp2p.peer.id import ID
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.mux import DATA, HEADER, OPEN
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.limits.bans import BAN_SECONDS, FORGIVEN_CHARGES
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.peer import rpc
from tests.support.libp2p_peers import LOOPBACK, echo, new_peer, on_trio, running, until_connected

MALFORMED = HEADER.pack(99, 1, 0)


def muxed(transport, peer: str):
    [connection] = transport.host.get_network().get_connections(ID.from_string(peer))
    return connection.muxed_conn


async def until_apart(*peers: ThreadedPeer) -> None:
    async with asyncio.timeout(60):
        for peer in peers:
            while await on_trio(peer, connections):  # noqa: ASYNC110 (they have no event)
                await asyncio.sleep(0.01)


async def connections(transport) -> int:
    return len(transport.connections.open)


async def break_a_rule(violator: ThreadedPeer, victim: ThreadedPeer) -> None:
    await violator.dial(await victim.addresses())
    await violator.request(victim.peer_id, "echo", b"x", timeout=60)
    await on_trio(violator, lambda transport: muxed(transport, victim.peer_id).secured_conn.write(MALFORMED))
    await until_apart(victim, violator)


async def charged(transport) -> list[str]:
    return list(transport.connections._bans._charges._buckets)


async def test_a_peer_that_repeatedly_violates_the_protocol_is_banned_until_the_ban_ends():
    victim, violator, honest = new_peer(), new_peer(), new_peer()
    victim.serve("echo", echo, limit=100)
    async with running(victim), running(violator), running(honest):
        for _ in range(FORGIVEN_CHARGES + 1):
            await break_a_rule(violator, victim)
        for _ in range(3):
            with contextlib.suppress(Unreachable):  # its end of the connection may stand for a moment
                await violator.dial(await victim.addresses())
            await until_apart(victim, violator)
        with pytest.raises(Unreachable, match=r"is banned for .* for repeated protocol violations"):
            await victim.dial(await violator.addresses())
        await honest.dial(await victim.addresses())
        assert await honest.request(victim.peer_id, "echo", b"x", timeout=60), "no other peer is affected"

        async def wait(transport) -> None:
            transport.connections._now = lambda: trio.current_time() + BAN_SECONDS

        await on_trio(victim, wait)
        assert await victim.dial(await violator.addresses()) == violator.peer_id
        await until_connected(violator, victim)  # the dialled side learns of it a moment later
        assert await violator.request(victim.peer_id, "echo", b"x", timeout=60)


async def resets_its_streams(transport, peer: str) -> None:
    for _ in range(20):
        stream = await transport.open(peer, rpc.PROTOCOL)
        await stream.send(b"echo")
        await stream.reset()


async def leaves_in_the_middle_of_a_frame(transport, peer: str) -> None:
    whole = HEADER.pack(OPEN, 99_999, 0) + HEADER.pack(DATA, 99_999, 1000)
    await muxed(transport, peer).secured_conn.write(whole + bytes(10))


async def loses_its_socket(transport, peer: str) -> None:
    await muxed(transport, peer).secured_conn.close()


async def has_its_bytes_changed_on_the_path(transport, peer: str) -> None:
    await muxed(transport, peer).transport.conn.write(b"\x00\x20" + bytes(32))


async def reads_a_byte_at_a_time(transport, peer: str) -> None:
    stream = await transport.open(peer, rpc.PROTOCOL)
    await stream.send(b"large")
    await stream.send(b"")
    for _ in range(300):
        assert await stream._stream.read(1)
        await trio.lowlevel.checkpoint()


async def does_not_read_at_all(transport, peer: str) -> None:
    stream = await transport.open(peer, rpc.PROTOCOL)
    await stream.send(b"large")
    await stream.send(b"")
    await trio.sleep(1.0)  # longer than the other side's patience


HONEST = {
    "resets its streams": resets_its_streams,
    "leaves in the middle of a frame": leaves_in_the_middle_of_a_frame,
    "loses its socket": loses_its_socket,
    "has its bytes changed on the path": has_its_bytes_changed_on_the_path,
    "reads a byte at a time": reads_a_byte_at_a_time,
    "does not read at all": does_not_read_at_all,
}


@pytest.mark.parametrize("name", HONEST)
async def test_a_peer_is_not_charged_with_a_violation_because_it(name):
    async def large(peer: str, request: bytes) -> bytes:
        return bytes(8 << 20)

    victim, unlucky = new_peer(patience=0.5), new_peer()
    victim.serve("echo", echo, limit=100)
    victim.serve("large", large, limit=100)
    async with running(victim), running(unlucky):
        await unlucky.dial(await victim.addresses())
        await on_trio(unlucky, lambda transport: HONEST[name](transport, victim.peer_id))
        await on_trio(unlucky, lambda transport: transport.host.disconnect(ID.from_string(victim.peer_id)))
        await until_apart(victim, unlucky)
        assert await on_trio(victim, charged) == []
        assert await unlucky.dial(await victim.addresses()) == victim.peer_id


async def test_a_violation_is_charged_at_once():
    victim, violator = new_peer(), new_peer()
    victim.serve("echo", echo, limit=100)
    async with running(victim), running(violator):
        await break_a_rule(violator, victim)
        assert await on_trio(victim, charged) == [violator.peer_id]


async def test_a_peer_beyond_the_limit_is_refused_counted_and_logged_and_admitted_when_another_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator = ThreadedPeer(generate_key(), [LOOPBACK], limits=PeerLimits(connections=2))
    first, second, third = (ThreadedPeer(generate_key(), []) for _ in range(3))
    async with running(coordinator), running(second), running(third):
        async with running(first):
            for node in (first, second):
                await node.dial(await coordinator.addresses())
            with pytest.raises(Unreachable):
                await third.dial(await coordinator.addresses())
            refused = (await coordinator.traffic()).refused
            assert refused.keys() == {"connections"}
            assert "connection refused: 2 connections are open, the limit of this peer" in caplog.text
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Unreachable):
                    await third.dial(await coordinator.addresses())
                    break
            # The dialling side is connected first.
            while set(await coordinator.peers()) != {second.peer_id, third.peer_id}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_host_that_is_full_can_still_dial() -> None:
    """A node whose places inbound connections occupy must still reach its coordinator."""
    full = ThreadedPeer(generate_key(), [LOOPBACK], limits=PeerLimits(connections=1))
    guest, coordinator = ThreadedPeer(generate_key(), []), new_peer()
    async with running(full), running(guest), running(coordinator):
        await guest.dial(await full.addresses())
        await full.dial(await coordinator.addresses())
        assert set(await full.peers()) == {guest.peer_id, coordinator.peer_id}
