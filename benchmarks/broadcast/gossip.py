"""Measure the time until a Head reaches all hosts: `python -m benchmarks.broadcast.gossip [--quick]`.

N hosts with the product's transport (`LibP2PTransport`: real connections on the loopback) run in one process, each
connected to others as nodes of a run are. The publisher sends a message of a Head's size every `EVERY` seconds. A
host's latency runs from the call of `publish` until its handler has the message; a round's latency is that of its
slowest host. All hosts share one thread, so latencies are CPU time, and count no waiting: that is in the other two
modes.

    all     every host knows the publisher, and some others
    few     one host in five knows the publisher, the others hear from one another
    lost    30 % of the hosts are lost: half are gone, half keep their connections and neither answer nor push on
    hostile 30 % of the hosts attack (`Attacks`): they drop, forge, flood, replay, or stop halfway through a request

The anchor is unicast: the publisher sends the message to all hosts at once, as one request to each. libp2p's gossipsub,
which carried Heads before, was measured by this file on the same machine; a bar is `FACTOR` times its latency, in units
of unicast's.

`--simulated N` (1,000): N hosts on the in-memory network and a fake clock, against the bound of every protocol: the
shortest path from the publisher over the connections that are left. Bar: `FACTOR` times that.

`--star N`: N hosts know only the publisher and listen nowhere, like nodes that can only dial the coordinator. The
publisher sends a Head every 2 s, 20 times. Bar: each host has each Head within 5 s.
"""

import argparse
import contextlib
import heapq
import math
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio
import trio.testing

from benchmarks.harness import bench
from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.peer.peer import Peer
from echo2.p2p.transport import Transport

TOPIC: Final = "head"
SIZE: Final = 507
"""Bytes of a Head with two addresses."""
ANYWHERE: Final = ("/ip4/127.0.0.1/tcp/0",)
NEIGHBOURS: Final = 4
"""Most hosts besides the publisher that a host dials."""
KNOW: Final = 5
"""In a graph where few know the publisher, one host in so many does."""
LOST: Final = 0.3
"""Share of the hosts that is lost, or attacks."""
SEED: Final = 1
"""Seed of connections and losses; it leaves every host that is not lost a path to the publisher."""
SETTLE: Final = 5.0
"""Seconds from the last connection to the first message."""
EVERY: Final = 2.0
"""Seconds from one message to the next."""
FACTOR: Final = 1.2
GOSSIPSUB: Final = {"all, lost": 1.53, "few, lost": 6.32}
"""Slowest host's median latency with libp2p's gossipsub at commit a82e67f4 among 40 hosts, over that of unicast to all
without gossipsub: docs/adr/0070-heads-by-requests.md."""
STAR_HEADS: Final = 20
LATEST: Final = 5.0
"""Seconds from a Head to its arrival at most."""


class Shape(NamedTuple):
    """Connections of a row, and what becomes of `LOST` of its hosts: "", "lost" or "hostile"."""

    known_to: str
    fault: str = ""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, self))


SHAPES: Final = (Shape("all"), Shape("all", "lost"), Shape("few"), Shape("few", "lost"), Shape("few", "hostile"))


class Host:
    """A host that gets messages by gossip and by request. `arrived`: when it first had each message, seconds of
    `clock`. `honest`: whether it counts. `silent`: it neither answers nor pushes on."""

    def __init__(self, seed: int, transport: Transport, clock: Callable[[], float]) -> None:
        self.arrived: dict[bytes, float] = {}
        self.honest, self.silent = True, False
        self.scope = trio.CancelScope()
        self.peer, self._clock, self._newest = Peer(transport, seed=seed), clock, -1
        self.peer.serve(TOPIC, self._on_request, limit=1 << 10)
        self.peer.subscribe(TOPIC, self._on_message)

    async def run(self) -> None:
        """Run the peer until the host is lost."""
        with self.scope:
            await self.peer.run()

    async def _on_message(self, sender: str, data: bytes) -> bool:
        if self.silent:
            await trio.sleep_forever()
        kind, _, rest = data.partition(b" ")
        number = int(rest[:8]) if kind == b"head" else -1
        if number <= self._newest:
            return False
        self._newest = number
        self.arrived.setdefault(data, self._clock())
        return True

    async def _on_request(self, sender: str, data: bytes) -> bytes:
        self.arrived.setdefault(data, self._clock())
        return b""


def real(seed: int, clock: Callable[[], float], listen: Sequence[str] = ANYWHERE) -> Host:
    """Return a host on libp2p."""
    return Host(seed, LibP2PTransport(generate_key(), listen), clock)


def graph(count: int, known_to: str, neighbours: int, choose: random.Random) -> Iterator[tuple[int, int]]:
    """Yield (dialling host, dialled host); host 0 is the publisher."""
    for number in range(1, count):
        if known_to == "all" or number % KNOW == 1:
            yield number, 0
        for other in choose.sample(range(1, number), min(neighbours, number - 1)):
            yield number, other


@asynccontextmanager
async def connected(hosts: Sequence[Host], edges: Sequence[tuple[int, int]]) -> AsyncIterator[None]:
    """Run hosts, connected along the edges."""
    async with trio.open_nursery() as nursery:
        for host in hosts:
            nursery.start_soon(host.run)
            await host.peer.ready()
        for one, other in edges:
            await hosts[one].peer.dial(await hosts[other].peer.addresses())
        await trio.sleep(SETTLE)
        yield
        nursery.cancel_scope.cancel()


def head(number: int) -> bytes:
    """Return a message of a Head's size; a higher number is newer."""
    return b"head %08d" % number + bytes(SIZE - 13)


class Attacks:
    """Attacks of hostile hosts until cancelled: each host makes one of these, on all peers that it is connected to."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts

    async def run(self) -> None:
        """Run the attacks of all hosts."""
        kinds = self._drop, self._forge, self._flood, self._replay, self._stall
        async with trio.open_nursery() as nursery:
            for number, host in enumerate(self._hosts):
                host.silent = kinds[number % len(kinds)] in (self._drop, self._stall)
                nursery.start_soon(kinds[number % len(kinds)], host)

    async def _drop(self, host: Host) -> None:
        """Take messages, and push none on."""

    async def _forge(self, host: Host) -> None:
        """Send messages that no handler accepts, 20 per second."""
        await self._send(host, lambda: b"lies" + random.randbytes(SIZE), pause=0.05)

    async def _flood(self, host: Host) -> None:
        """Send large messages as fast as they are taken."""
        await self._send(host, lambda: random.randbytes(16 << 10), pause=0.0)

    async def _replay(self, host: Host) -> None:
        """Send an old message again and again."""
        await self._send(host, lambda: head(0), pause=0.05)

    async def _send(self, host: Host, message: Callable[[], bytes], pause: float) -> None:
        from echo2.p2p.peer.gossip import METHOD, GossipRequest
        from echo2.p2p.wire_types import encode

        while True:
            for peer in await host.peer.peers():
                with contextlib.suppress(P2PError):
                    await host.peer.request(peer, METHOD, encode(GossipRequest(topic=TOPIC, data=message())), timeout=5)
            await trio.sleep(pause)

    async def _stall(self, host: Host) -> None:
        """Hold requests that end in the middle, eight with each peer."""
        from echo2.p2p.peer import rpc
        from echo2.p2p.peer.gossip import METHOD

        streams = []
        while True:
            for peer in await host.peer.peers():
                with contextlib.suppress(P2PError):
                    for _ in range(8):
                        streams.append(await host.peer._transport.open(peer, rpc.PROTOCOL))
                        await streams[-1].send(METHOD.encode())
            await trio.sleep(10)


def lose(hosts: Sequence[Host], fault: str, gone: Callable[[Host], None], choose: random.Random) -> list[Host]:
    """Lose some hosts, or make them hostile; return these. `gone`: ends a host."""
    chosen = choose.sample(hosts[1:], round(LOST * (len(hosts) - 1))) if fault else []
    for number, host in enumerate(chosen):
        host.honest = False
        if fault == "lost":
            host.silent = bool(number % 2)
            if not host.silent:
                gone(host)
    return chosen


def reachable(
    hosts: Sequence[Host], edges: Sequence[tuple[int, int]], delay: Callable[[int, int], float]
) -> list[float]:
    """Return the length of the shortest path from the publisher to each honest host over honest ones, in `delay`."""
    near: dict[int, list[int]] = {number: [] for number in range(len(hosts))}
    for one, other in edges:
        near[one].append(other)
        near[other].append(one)
    known, heap = dict[int, float](), [(0.0, 0)]
    while heap:
        at, number = heapq.heappop(heap)
        if number in known or not hosts[number].honest:
            continue
        known[number] = at
        for other in near[number]:
            heapq.heappush(heap, (at + delay(number, other), other))
    del known[0]
    return sorted(known.values())


class Latencies(NamedTuple):
    """The latencies of each round, ascending, seconds, and the number of messages that did not arrive."""

    rounds: list[list[float]]
    lost: int

    @property
    def median(self) -> float:
        return statistics.median(latency for latencies in self.rounds for latency in latencies)

    @property
    def slowest(self) -> float:
        return statistics.median(latencies[-1] if latencies else math.inf for latencies in self.rounds)


async def publish_heads(hosts: Sequence[Host], rounds: int, every: float, clock: Callable[[], float]) -> Latencies:
    """Publish Heads, and measure them at the honest hosts. One that is later than `LATEST` counts as lost."""
    honest, starts = [host for host in hosts[1:] if host.honest], dict[bytes, float]()
    for number in range(1, rounds + 1):
        starts[head(number)] = clock()
        await hosts[0].peer.publish(TOPIC, head(number))
        await trio.sleep(every)
    await trio.sleep(LATEST)
    arrived = [
        sorted(host.arrived[one] - start for host in honest if one in host.arrived) for one, start in starts.items()
    ]
    results = [[latency for latency in latencies if latency <= LATEST] for latencies in arrived]
    return Latencies(results, rounds * len(honest) - sum(map(len, results)))


async def unicast(hosts: Sequence[Host], rounds: int) -> Latencies:
    """Send messages to every host, as requests."""
    results, lost = [], 0
    for number in range(rounds):
        message, start = b"unicast %d" % number, time.process_time()
        async with trio.open_nursery() as nursery:
            for host in hosts[1:]:

                async def ask(peer: str = host.peer.peer_id, message: bytes = message) -> None:
                    await hosts[0].peer.request(peer, TOPIC, message.ljust(SIZE), timeout=30)

                nursery.start_soon(ask)
        latencies = sorted(
            at - start for host in hosts for data, at in host.arrived.items() if data.startswith(message)
        )
        lost += len(hosts) - 1 - len(latencies)
        results.append(latencies)
        await trio.sleep(0.5)
    return Latencies(results, lost)


async def measure(count: int, shape: Shape, rounds: int) -> tuple[Latencies, Latencies | None]:
    """Measure real hosts: gossip, and unicast where all know the publisher and none is lost."""
    choose = random.Random(SEED)
    hosts, edges = (
        [real(seed, time.process_time) for seed in range(count)],
        list(graph(count, shape.known_to, NEIGHBOURS, choose)),
    )
    async with connected(hosts, edges):
        asked = await unicast(hosts, rounds) if shape == SHAPES[0] else None
        chosen = lose(hosts, shape.fault, lambda host: host.scope.cancel(), choose)
        assert len(reachable(hosts, edges, lambda one, other: 1.0)) == sum(host.honest for host in hosts) - 1
        async with trio.open_nursery() as nursery:
            if shape.fault == "hostile":
                nursery.start_soon(Attacks(chosen).run)
            await trio.sleep(1)
            gossiped = await publish_heads(hosts, rounds, EVERY, time.process_time)
            nursery.cancel_scope.cancel()
    return gossiped, asked


async def simulate(count: int, shape: Shape, rounds: int) -> tuple[Latencies, float]:
    """Measure hosts on the in-memory network; return also the bound: seconds of the shortest path to the last host."""
    choose, network = random.Random(SEED), MemoryNetwork(0)
    hosts = [Host(seed, network.transport(f"host {seed}"), trio.current_time) for seed in range(count)]
    edges = list(graph(count, shape.known_to, 2 * NEIGHBOURS, choose))
    for one, other in edges:
        network.set_link(f"host {one}", f"host {other}", Link(delay=choose.uniform(0.01, 0.1)))
    async with connected(hosts, edges):
        for host in lose(hosts, shape.fault, lambda host: network.kill(host.peer.peer_id), choose):
            if host.silent:
                network.freeze(host.peer.peer_id)
        gossiped = await publish_heads(hosts, rounds, 60.0, trio.current_time)
    paths = reachable(hosts, edges, lambda one, other: network.link(f"host {one}", f"host {other}").delay)
    assert len(paths) == sum(host.honest for host in hosts) - 1
    return gossiped, paths[-1]


async def starred(count: int) -> tuple[Latencies, float]:
    """Measure the `count` hosts of a star; return also the CPU seconds of all hosts together per Head."""
    hosts = [real(seed, time.perf_counter, () if seed else ANYWHERE) for seed in range(count + 1)]
    async with connected(hosts, [(number, 0) for number in range(1, count + 1)]):
        cpu = time.process_time()
        latencies = await publish_heads(hosts, STAR_HEADS, EVERY, time.perf_counter)
    return latencies, (time.process_time() - cpu) / STAR_HEADS


def report_star(count: int) -> int:
    """Measure a star of `count` hosts; return the exit status."""
    bench.header("gossip over a star: from the publisher to hosts that know no other host")
    measured, cpu = trio.run(starred, count)
    slowest, wanted = max(map(max, filter(None, measured.rounds)), default=math.inf), count * STAR_HEADS
    row = count, STAR_HEADS, f"{wanted - measured.lost} of {wanted}", measured.median, slowest, cpu
    bench.table(["hosts", "Heads", "within 5 s", "median, s", "slowest, s", "CPU per Head, s"], [row])
    print(f"star of {count}: {measured.lost} of {wanted} Heads lost or later than {LATEST:g} s, bar 0")
    return int(measured.lost > 0)


def report_simulated(count: int) -> int:
    """Measure one Head in simulated time, which repeats exactly; return the exit status."""
    bench.header(f"gossip among {count} simulated hosts: from the publisher to every host")
    rows, claims, lost = list[Sequence[object]](), [], 0
    for shape in SHAPES[:4]:
        measured, bound = trio.run(simulate, count, shape, 1, clock=trio.testing.MockClock(autojump_threshold=0))
        rows.append((count, shape.name, 1e3 * measured.median, 1e3 * measured.slowest, 1e3 * bound, measured.lost))
        name = f"{count} simulated hosts, {shape.name}"
        claims.append(bench.Claim(name, measured.slowest / bound, "the shortest paths", FACTOR, at_most=True))
        lost += measured.lost
    bench.table(["hosts", "the publisher is known to", "median, ms", "slowest, ms", "bound, ms", "missing"], rows)
    print("\n".join(claim.closing_line() for claim in claims))
    return int(lost > 0 or not all(claim.ok for claim in claims))


def report_real(counts: Sequence[int], rounds: int) -> int:
    """Measure real hosts; return the exit status."""
    bench.header("gossip: from the publisher to every host")
    rows, claims, lost = list[Sequence[object]](), [], 0
    for count in counts:
        unit = math.nan
        for shape in SHAPES:
            gossiped, asked = trio.run(measure, count, shape, rounds)
            unit = unit if asked is None else asked.slowest
            for name, measured in (("gossip", gossiped), ("unicast", asked)):
                if measured is not None:
                    figures = 1e3 * measured.median, 1e3 * measured.slowest, measured.slowest / unit, measured.lost
                    rows.append((count, shape.name, name, *figures))
            if shape.name in GOSSIPSUB and count == counts[-1]:
                ratio = gossiped.slowest / unit / GOSSIPSUB[shape.name]
                claims.append(bench.Claim(f"{count} hosts, {shape.name}", ratio, "gossipsub", FACTOR, at_most=True))
            lost += gossiped.lost
    bench.table(
        ["hosts", "the publisher is known to", "sent by", "median, ms", "slowest, ms", "of unicast", "missing"], rows
    )
    print("\n".join(claim.closing_line() for claim in claims))
    return int(lost > 0 or not all(claim.ok for claim in claims))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="20 hosts, 5 messages")
    parser.add_argument("--star", type=int, metavar="N", help="a star of N hosts instead")
    parser.add_argument("--simulated", type=int, metavar="N", help="N hosts in simulated time instead")
    given = parser.parse_args()
    bench.one_thread()
    if given.star:
        return report_star(given.star)
    if given.simulated:
        return report_simulated(given.simulated)
    return report_real((20,) if given.quick else (20, 40), 5 if given.quick else 20)


if __name__ == "__main__":
    sys.exit(main())
