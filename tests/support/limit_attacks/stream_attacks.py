"""Attacks on streams and requests over libp2p: the product's muxer and requests in memory, on a fake clock."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import trio
import trio.testing

from benchmarks.memory_network.transport import MemoryNetwork
from echo2._libp2p.stream_muxer.exceptions import MuxedStreamReset
from echo2.p2p.errors import Busy, Malformed, P2PError
from echo2.p2p.limits import subnets
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.request_slots import PER_PARTY
from echo2.p2p.limits.shares import Shares
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.peer import gossip
from echo2.p2p.peer.gossip import GossipExchange, GossipRequest
from echo2.p2p.peer.peer import Peer
from echo2.p2p.swarm.exchange import PROTOCOL as CHUNKS
from echo2.p2p.swarm.exchange import STREAMS_PER_PEER
from echo2.p2p.wire_types import encode
from tests.support.clock import run_fake
from tests.support.doors import (
    METHODS,
    PROVEN,
    SUBNETS,
    Caller,
    Door,
    all_answered,
    on_a_door,
    request_bytes,
    stop_halfway,
)
from tests.support.limit_attacks.attack import SLACK, Taken, lacking
from tests.support.peers import payload_file, peers

Measure = Callable[[Door], float]
LARGE = bytes(6 << 20)
"""An answer that is larger than all windows."""
POOL = 1_000_000
"""Bytes of unfinished requests of strangers, where a test fills them."""


def on_door(
    measure: Measure,
    begin: Callable[[Door], Awaitable[list[str]]],
    seconds: float,
    limits: PeerLimits | None = None,
    need: Callable[[Caller], Awaitable[bool]] = all_answered,
) -> Taken:
    """Attack a door by `begin`, which returns what was refused wrongly, while a proven party needs `need`."""
    taken: list[Taken] = []

    async def main(door: Door) -> None:
        proven = await door.connect(PROVEN)
        before = measure(door)
        refused = await begin(door)
        await trio.testing.wait_all_tasks_blocked()
        during, stopped = measure(door), trio.current_time()
        refused += lacking(await need(proven), "an answer to a method of each class")
        await trio.sleep_until(stopped + seconds + SLACK)
        taken.append(Taken(before, during, measure(door), refused))

    on_a_door(main, limits)
    return taken[0]


def halves(measure: Measure, limits: Callable[[], PeerLimits] | None = None) -> Callable[[Path, float], Taken]:
    """Return an attack by streams that stop in and after each part of a request to each class of methods."""

    async def begin(door: Door) -> list[str]:
        for ip in SUBNETS:
            await stop_halfway(await door.connect(ip), 40)
        return []

    return lambda folder, seconds: on_door(measure, begin, seconds, None if limits is None else limits())


def streams_of_all(folder: Path, seconds: float) -> Taken:
    """Open more streams from eight subnets than strangers may have here, and stop after each byte of a request."""
    whole = request_bytes("submit", b"fifty bytes".ljust(50))

    async def begin(door: Door) -> list[str]:
        for number, ip in enumerate(SUBNETS):
            attacker = await door.connect(ip)
            for at in range(len(whole)):
                with suppress(MuxedStreamReset):
                    await (await attacker.open()).write(whole[: (at + number) % len(whole)])
        return []

    return on_door(lambda door: door.gate.streams.total, begin, seconds, PeerLimits(connections=16))


def streams_of_a_party(folder: Path, seconds: float) -> Taken:
    """Open more streams from one subnet than a party may have."""

    async def begin(door: Door) -> list[str]:
        for _ in range(3):
            await stop_halfway(await door.connect(SUBNETS[0]), 180)
        return []

    return on_door(lambda door: door.gate.streams._of_party["8.8.0.0/24"], begin, seconds)


def unfinished_bytes(folder: Path, seconds: float) -> Taken:
    """Send more bytes of requests than strangers may have unfinished, but for the last byte of each."""

    async def begin(door: Door) -> list[str]:
        door.gate.unfinished = Shares(4 * POOL, POOL)

        async def send(caller: Caller, nbytes: int) -> None:
            with suppress(MuxedStreamReset):
                await (await caller.open()).write(request_bytes("submit", bytes(nbytes))[:-1])

        for ip in SUBNETS:
            caller = await door.connect(ip)
            for nbytes in (200_000, 100_000):
                door.nursery.start_soon(send, caller, nbytes)
        return []

    return on_door(lambda door: door.gate.unfinished.total, begin, seconds)


def slots(measure: Measure, parties: list[str]) -> Callable[[Path, float], Taken]:
    """Return an attack by requests that come whole and whose answers are not read. Halves may take no slot at all."""

    async def begin(door: Door) -> list[str]:
        async def large(peer: str, request: bytes) -> bytes:
            return LARGE

        door.serve("remake", large)
        for ip in parties:
            await stop_halfway(await door.connect(ip), 40)
        await trio.testing.wait_all_tasks_blocked()
        refused = lacking(not door.server._slots._in_use.total(), "a slot that half a request has")
        for ip in parties:
            attacker = await door.connect(ip)
            for _ in range(PER_PARTY):
                await (await attacker.open()).write(request_bytes("remake", b""))
        return refused

    return lambda folder, seconds: on_door(measure, begin, seconds)


def slots_of_all(door: Door) -> float:
    return door.server._slots._in_use.total()


def slots_of_a_party(door: Door) -> float:
    return max(door.server._slots._in_use_by.values(), default=0)


def requests(folder: Path, seconds: float) -> Taken:
    """Begin more requests of one connection than it may at once."""

    async def begin(door: Door) -> list[str]:
        for number in range(4):
            caller = await door.connect(SUBNETS[0])
            for _ in range(int(subnets.ASKS_BURST) * 6 // 10):
                await (await caller.open()).write(request_bytes(METHODS["hello"], b"")[: number + 1])
        return []

    def wait(door: Door) -> float:
        return door.server._rate_of_party.delay("8.8.0.0/24", trio.current_time())

    return on_door(wait, begin, seconds)


def gossip_message(folder: Path, seconds: float) -> Taken:
    """Push messages of the greatest length, but for their last byte, and longer ones."""

    async def begin(door: Door) -> list[str]:
        exchange = _listening(door)
        message = encode(GossipRequest(topic="heads", data=bytes(gossip.GOSSIP_LIMIT)))
        refused = list[str]()
        for ip in SUBNETS:
            caller = await door.connect(ip)
            for at in (1, len(message) // 2, len(message) - 1):
                whole = request_bytes(gossip.METHOD, message)
                await (await caller.open()).write(whole[: len(whole) - at])
            try:
                await caller.ask(gossip.METHOD, bytes(gossip.MOST_PUSH_BYTES + 1))
                refused.append("a bound on a message")
            except Malformed:
                pass
        proven = await door.connect(PROVEN)
        push = encode(GossipRequest(topic="heads", data=b"a Head"))
        refused += lacking(await proven.is_answered(gossip.METHOD, push), "a push")
        return refused + lacking(exchange._newest["heads"].data == b"a Head", "the news")

    return on_door(lambda door: door.gate.unfinished.total, begin, seconds, need=_hello)


def gossip_rate(folder: Path, seconds: float) -> Taken:
    """Push messages that are not new, without end."""
    exchanges: list[GossipExchange] = []

    async def begin(door: Door) -> list[str]:
        exchanges.append(_listening(door))
        attacker, busy = await door.connect(SUBNETS[0]), 0
        for number in range(2 * int(gossip.JUDGED_BURST)):
            old = encode(GossipRequest(topic="heads", data=b"old %d" % number))
            try:
                await attacker.ask(gossip.METHOD, old)
            except Busy:
                busy += 1
        proven = await door.connect(PROVEN)
        push = encode(GossipRequest(topic="heads", data=b"a Head"))
        return lacking(busy > 0, "a bound") + lacking(await proven.is_answered(gossip.METHOD, push), "a push")

    def wait(door: Door) -> float:
        return exchanges[0]._judged.delay("8.8.0.0/24", trio.current_time()) if exchanges else 0.0

    return on_door(wait, begin, seconds, need=_hello)


async def _hello(caller: Caller) -> bool:
    return await caller.is_answered(METHODS["hello"])


def _listening(door: Door) -> GossipExchange:
    """Let a door take messages of the topic "heads": only one that is "a Head" is valid."""

    async def request(*asked: object, **more: object) -> bytes:
        raise P2PError("nobody is asked here")

    async def judge(peer: str, data: bytes) -> bool:
        return data == b"a Head"

    exchange = GossipExchange(request, list, door.gate.origins.of, door.handlers, 0)
    exchange.subscribe("heads", judge)
    return exchange


def chunk_streams(folder: Path, seconds: float) -> Taken:
    """Open more chunk streams of one peer than it may, and send no first message."""
    taken: list[Taken] = []
    manifest = payload_file(folder / "payload", 300_000)

    async def main() -> None:
        network = MemoryNetwork(1)
        network.origins["eve"] = Origin("eve", "8.8.0.0/24")
        async with peers(network, "server", "node", "eve") as (server, node, _):
            await server.share(manifest, folder / "payload")
            transport = network.transports["eve"]
            for _ in range(2 * STREAMS_PER_PEER):
                await transport.open("server", CHUNKS)
            await anyio.sleep(0.1)
            during, stopped = _serving(server), anyio.current_time()
            with anyio.move_on_after(5.0):
                await node.fetch(manifest, folder / "fetched")
            refused = lacking((folder / "fetched").exists(), "a payload")
            await anyio.sleep(stopped + seconds + SLACK - anyio.current_time())
            taken.append(Taken(0, during, _serving(server), refused))

    run_fake(main)
    return taken[0]


def _serving(server: Peer) -> float:
    return server._exchange._serving["eve"]
