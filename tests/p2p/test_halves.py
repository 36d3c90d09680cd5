"""Nothing is held for bytes that have not come: each limit of the inbound side against attackers that stop halfway.

They stop after each of `CUTS` of a request to each class of methods, and stay connected. Meanwhile nothing that a party
with accepted work needs may be missing, and `RATE_SECONDS` after they stopped everything has to be back.
"""

import asyncio
from contextlib import suppress

import pytest
import trio
import trio.testing

from echo2._libp2p.stream_muxer.exceptions import MuxedStreamReset
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.limits import least_rate, shares
from echo2.p2p.limits.least_rate import LEAST_RATE, RATE_SECONDS
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.request_slots import CLASSES, PER_PARTY
from echo2.p2p.limits.shares import STREAMS_PER_PARTY, STREAMS_PER_PLACE
from echo2.p2p.limits.subnets import CONNECTIONS, PeerLimits
from tests.support import https
from tests.support.doors import (
    METHODS,
    PAYLOAD,
    PROVEN,
    SUBNETS,
    Caller,
    Door,
    all_answered,
    cuts,
    echo,
    on_a_door,
    request_bytes,
    size,
    stop_halfway,
)
from tests.support.libp2p_peers import new_peer, on_trio, running
from tests.support.muxed_pairs import read_all

STRANGERS = STREAMS_PER_PLACE * CONNECTIONS * 3 // 4
"""Streams that strangers may have open together."""
LINE, LATENCY = 8000.0, 1.0
"""Bytes per second of a line of 64 kbit/s, and its seconds one way."""


def test_the_classes_are_walked_one_and_all() -> None:
    assert METHODS.keys() == CLASSES.keys()


@pytest.mark.parametrize("each", [35, 350], ids=["few", "many"])
@pytest.mark.slow_but("few")
def test_who_stops_halfway_takes_nothing_and_all_is_back_when_the_rate_ends(each: int) -> None:
    """Many are more than there are slots in any class."""

    async def main(door: Door) -> None:
        attackers = [await door.connect(ip) for ip in SUBNETS for _ in range(1 + each // 240)]
        for attacker in attackers:
            await stop_halfway(attacker, min(each, 250))
        await trio.testing.wait_all_tasks_blocked()
        stopped = trio.current_time()
        assert door.gate.streams.total == min(min(each, 250) * len(attackers), STRANGERS)
        assert await all_answered(await door.connect(PROVEN), PER_PARTY // 2)
        assert await all_answered(await door.connect("7.7.7.7")), "a newcomer needs the same"
        await trio.sleep_until(stopped + RATE_SECONDS + 0.1)
        assert door.gate.streams.total == door.gate.unfinished.total == 0
        assert all(attacker.near.is_established for attacker in attackers), "only what was not finished is taken back"
        assert await all_answered(attackers[0])

    on_a_door(main)


@pytest.mark.slow
def test_the_same_after_each_single_byte_of_a_request() -> None:
    whole = request_bytes("submit", b"fifty bytes".ljust(50))

    async def main(door: Door) -> None:
        attackers = [await door.connect(ip) for ip in SUBNETS]
        for number, attacker in enumerate(attackers):
            for at in range(number, len(whole), len(attackers)):
                for _ in range(8):
                    stream = await attacker.open()
                    await stream.write(whole[:at])
        assert await all_answered(await door.connect(PROVEN))
        await trio.sleep(RATE_SECONDS + 0.1)
        assert door.gate.streams.total == door.gate.unfinished.total == 0

    on_a_door(main)


@pytest.mark.slow
@pytest.mark.parametrize("ip", [SUBNETS[0], "10.0.0.1"], ids=["a subnet", "private addresses of a public run"])
def test_streams_of_one_party_end_at_its_share_and_leave_those_of_its_neighbours(ip: str) -> None:
    """Idle streams, as of gossip, are back with their connection only."""

    async def main(door: Door) -> None:
        neighbour = await door.connect(ip)
        for _ in range(4):
            attacker = await door.connect(ip)
            for _ in range(200):
                await (await attacker.open()).write(b"\0")
        await trio.testing.wait_all_tasks_blocked()
        assert door.gate.streams.total <= STREAMS_PER_PARTY
        assert await all_answered(neighbour)

    on_a_door(main, PeerLimits(parties=Parties(private_is_one=True, proxies=["10.0.0.7"])))


@pytest.mark.slow
def test_streams_of_many_parties_at_private_addresses_leave_room_for_who_opens_few() -> None:
    async def main(door: Door) -> None:
        honest = [await door.connect("10.0.0.1") for _ in range(3)]
        for _ in range(6):
            attacker = await door.connect("10.0.0.1")
            for _ in range(200):
                await (await attacker.open()).write(b"\0")
        for caller in (*honest, await door.connect("10.0.0.1"), await door.connect(PROVEN)):
            assert await all_answered(caller)
        assert door.gate.streams.total <= 16 * 48

    on_a_door(main, PeerLimits(connections=64))


def test_unfinished_bytes_of_strangers_are_bounded_and_the_party_with_most_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "STRANGERS_UNFINISHED", 1_000_000)

    async def main(door: Door) -> None:
        async def hold(caller: Caller) -> None:
            for nbytes in (600_000, 400_000, 200_000):  # one of them finds room
                with suppress(MuxedStreamReset):
                    await (await caller.open()).write(request_bytes("submit", bytes(nbytes))[:-1])
                    await trio.sleep(1)

        for ip in SUBNETS:
            door.nursery.start_soon(hold, await door.connect(ip))
        for ip in (PROVEN, "7.7.7.7"):
            caller = await door.connect(ip)
            for _ in range(4):
                await trio.sleep(1)
                assert 500_000 < door.gate.unfinished.total <= 1_000_000
                assert await caller.ask("submit", bytes(100_000)) == bytes(100_000)
        await trio.sleep(2 * RATE_SECONDS)
        assert door.gate.unfinished.total == 0

    on_a_door(main)


@pytest.mark.slow
def test_an_honest_line_of_64_kbit_with_a_second_of_latency_hands_in_its_groups() -> None:
    """Three groups of 100 kB at once, and a small request between them."""

    async def main(door: Door) -> None:
        caller, answered = await door.connect(PROVEN, rate=LINE, latency=LATENCY), list[bytes]()
        door.serve("submit", size)

        async def submit() -> None:
            answered.append(await caller.ask("submit", bytes(100_000)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(submit)
            await trio.sleep(20)
            assert await caller.is_answered("lease", b"x", within=60)
        assert answered == [b"100000"] * 3
        assert trio.current_time() > 300_000 / LINE

    on_a_door(main)


@pytest.mark.parametrize(("share", "passes"), [(1.1, True), (0.6, False)])
def test_the_least_rate_decides_whether_a_request_arrives(share: float, passes: bool) -> None:
    async def main(door: Door) -> None:
        stream = await (await door.connect(PROVEN)).open()
        whole, piece = request_bytes("submit", bytes(60_000)), round(share * LEAST_RATE)
        try:
            for at in range(0, len(whole), piece):
                await stream.write(whole[at : at + piece])
                await trio.sleep(1)
            await stream.close()
            arrived = (await read_all(stream)).endswith(bytes(60_000))
        except MuxedStreamReset:
            arrived = False
        assert arrived == passes

    on_a_door(main)


@pytest.mark.slow
def test_who_does_not_read_its_answer_takes_no_slot_for_longer_than_the_rate() -> None:
    """The answer is larger than all windows, so it cannot leave."""

    async def main(door: Door) -> None:
        async def large(peer: str, request: bytes) -> bytes:
            return bytes(6 << 20)

        door.serve("remake", large)
        attackers = [await door.connect(ip) for ip in SUBNETS]
        for attacker in attackers:
            for _ in range(PER_PARTY):
                await (await attacker.open()).write(request_bytes("remake", b""))
        await trio.testing.wait_all_tasks_blocked()
        assert await all_answered(await door.connect(PROVEN))
        await trio.sleep(RATE_SECONDS + 0.1)
        assert not door.server._slots._in_use.total()

    on_a_door(main)


@pytest.mark.slow
async def test_half_bodies_over_https_take_no_slot_and_are_back_when_the_rate_ends(monkeypatch) -> None:
    """A byte of the headers, half of them, all, and half a body, of each more than a class has slots."""
    monkeypatch.setattr(least_rate, "RATE_SECONDS", 2.0)
    head = b"POST /echo2/1/rpc/hello HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n"
    async with https.served(hello=https.echo, limits=HttpsLimits(per_visitor=1000)) as server:
        writers = list[asyncio.StreamWriter]()
        contexts = [https.raw(server) for _ in range(160)]
        for number, context in enumerate(contexts):
            _, writer = await context.__aenter__()
            writer.write((head + bytes(450))[: (1, 30, len(head), len(head) + 450)[number % 4]])
            writers.append(writer)
        async with https.client_of(server) as client:
            assert await client.request("coordinator", "hello", b"", timeout=10) == b"https:"
            async with asyncio.timeout(20):
                while len(server.https.listener.clients) > 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert await client.request("coordinator", "hello", b"", timeout=10) == b"https:"
        assert server.https.listener._unfinished.total == 0
        for writer in writers:
            writer.close()


@pytest.mark.slow
async def test_the_same_over_real_connections() -> None:
    """Attackers at a private address are parties of their own, as is each honest peer."""
    server = new_peer()
    server.serve("submit", echo, limit=1 << 16)
    attackers, honest = [new_peer() for _ in range(9)], new_peer()

    async def halves(transport) -> None:
        for number in range(250):
            at = cuts(request_bytes("submit", PAYLOAD), "submit")[number % 10]
            stream = await transport.host.new_stream(server_id, ["/echo2/rpc/1"])
            await stream.write(request_bytes("submit", PAYLOAD)[:at])

    async def occupied(transport) -> int:
        return transport.connections.streams.total

    async with running(server, honest):
        server_id = await on_trio(server, own_id)
        async with running(*attackers, chained=True), asyncio.TaskGroup() as group:
            for attacker in attackers:
                await attacker.dial(await server.addresses())
            for attacker in attackers:
                group.create_task(on_trio(attacker, halves))
            async with asyncio.timeout(60):
                while await on_trio(server, occupied) < 300:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for _ in range(20):
                assert await honest.request(server.peer_id, "submit", b"x", timeout=5) == b"x"
            async with asyncio.timeout(RATE_SECONDS + 20):
                while await on_trio(server, occupied) > 30:  # gossip and identify keep theirs  # noqa: ASYNC110
                    await asyncio.sleep(0.2)


async def own_id(transport):
    return transport.host.get_id()
