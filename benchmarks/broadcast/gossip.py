"""Measure the time until a Head reaches all hosts: `python -m benchmarks.broadcast.gossip [--quick]`.

N hosts with the product's transport (`LibP2PTransport`: gossipsub over libp2p, real connections on the loopback) run in
one process, each connected to the publisher and to some others, as nodes of a run are. The publisher sends one message
of a Head's size per second. A host's latency runs from the call of `publish` until its handler has the message. The
anchor is unicast: the publisher sends the message to all hosts at once, as one request to each.

All hosts share one thread, so both latencies are mostly CPU time, which grows with the number of hosts. There is no
bar.

`--star N`: N hosts know only the publisher and listen nowhere, like nodes that can only dial the coordinator. The
publisher sends a Head every 2 s, 20 times. Bar: each host has each Head within 5 s.
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from benchmarks.harness import bench
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.peer.peer import Peer

TOPIC: Final = "head"
SIZE: Final = 300
"""Bytes of a message."""
NEIGHBOURS: Final = 4
"""Most hosts besides the publisher that a host dials."""
SETTLE: Final = 5.0
"""Seconds for the gossip meshes to form: some heartbeats."""


STAR_HEADS: Final = 20
STAR_EVERY, STAR_BAR = 2.0, 5.0
"""Seconds from one Head to the next, and from a Head to its arrival at most."""


class Host:
    """A host that gets messages by gossip and by request. `arrived`: when it first had each message, monotonic
    seconds."""

    def __init__(self, seed: int, listen: Sequence[str] = ("/ip4/127.0.0.1/tcp/0",)) -> None:
        self.arrived: dict[bytes, float] = {}
        self.transport = LibP2PTransport(generate_key(), listen)
        self.peer = Peer(self.transport, seed=seed)
        self.peer.serve(TOPIC, self._asked, limit=1 << 10)
        self.peer.subscribe(TOPIC, self._heard)

    async def _heard(self, sender: str, data: bytes) -> bool:
        self.arrived.setdefault(data, time.perf_counter())
        return True

    async def _asked(self, sender: str, data: bytes) -> bytes:
        self.arrived.setdefault(data, time.perf_counter())
        return b""


@asynccontextmanager
async def connected(count: int) -> AsyncIterator[list[Host]]:
    """Run `count` connected hosts; the first is the publisher."""
    hosts = [Host(seed) for seed in range(count)]
    choose = random.Random(0)
    async with trio.open_nursery() as nursery:
        for host in hosts:
            nursery.start_soon(host.peer.run)
            await host.peer.ready()
        for number, host in enumerate(hosts[1:], 1):
            others = choose.sample(hosts[1:number], min(NEIGHBOURS, number - 1))
            for other in (hosts[0], *others):
                await host.peer.dial(await other.peer.addresses())
        await trio.sleep(SETTLE)
        yield hosts
        nursery.cancel_scope.cancel()


async def gossiped(hosts: Sequence[Host], message: bytes) -> float:
    """Publish a message; return the time of the call."""
    start = time.perf_counter()
    await hosts[0].peer.publish(TOPIC, message)
    return start


async def unicast(hosts: Sequence[Host], message: bytes) -> float:
    """Send a message to every host as a request; return the time of the call."""
    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for host in hosts[1:]:

            async def ask(peer: str = host.peer.peer_id) -> None:
                await hosts[0].peer.request(peer, TOPIC, message, timeout=30)

            nursery.start_soon(ask)
    return start


WAYS: Final = {"gossip": gossiped, "unicast": unicast}


async def measure(count: int, rounds: int) -> dict[str, tuple[list[list[float]], int]]:
    """Return, for gossip and for unicast, the latencies of each round in s, ascending, and the number of lost
    messages."""
    results: dict[str, tuple[list[list[float]], int]] = {}
    async with connected(count) as hosts:
        for name, network_of in WAYS.items():
            rounds_of, lost = [], 0
            for number in range(rounds):
                message = f"{name} {number} ".encode().ljust(SIZE, b".")
                start = await network_of(hosts, message)
                await trio.sleep(max(0.0, start + 1 - time.perf_counter()))
                latencies = [host.arrived[message] - start for host in hosts[1:] if message in host.arrived]
                lost += len(hosts) - 1 - len(latencies)
                rounds_of.append(sorted(latencies))
            results[name] = rounds_of, lost
    return results


async def starred(count: int) -> tuple[list[float], float]:
    """Return the latencies in s of all Heads that arrived at the `count` hosts of a star, ascending, and the CPU
    seconds of all hosts together per Head."""
    publisher, hosts = Host(0), [Host(seed, ()) for seed in range(1, count + 1)]
    async with trio.open_nursery() as nursery:
        for host in (publisher, *hosts):
            nursery.start_soon(host.peer.run)
            await host.peer.ready()
        for host in hosts:
            await host.peer.dial(await publisher.peer.addresses())
        await trio.sleep(SETTLE)
        starts, cpu = {}, time.process_time()
        for number in range(STAR_HEADS):
            message = f"star {number} ".encode().ljust(SIZE, b".")
            starts[message] = await gossiped([publisher], message)
            await trio.sleep(max(0.0, starts[message] + STAR_EVERY - time.perf_counter()))
        await trio.sleep(STAR_BAR)
        cpu = (time.process_time() - cpu) / STAR_HEADS
        nursery.cancel_scope.cancel()
    return sorted(host.arrived[one] - at for host in hosts for one, at in starts.items() if one in host.arrived), cpu


def star(count: int) -> int:
    """Measure a star of `count` hosts; return the exit status."""
    bench.header("gossip over a star: from the publisher to hosts that know no other host")
    latencies, cpu = trio.run(starred, count)
    wanted, prompt = count * STAR_HEADS, sum(latency <= STAR_BAR for latency in latencies)
    slowest = latencies[-1] if latencies else float("inf")
    row = (count, STAR_HEADS, f"{prompt} of {wanted}", statistics.median(latencies), slowest, cpu)
    bench.table(["hosts", "Heads", "within 5 s", "median, s", "slowest, s", "CPU per Head, s"], [row])
    print(f"star of {count}: {wanted - prompt} of {wanted} Heads lost or later than {STAR_BAR:g} s, bar 0")
    return int(prompt < wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="20 hosts, 10 messages")
    parser.add_argument("--star", type=int, metavar="N", help="a star of N hosts instead")
    given = parser.parse_args()
    bench.one_thread()
    if given.star:
        return star(given.star)
    bench.header("gossip: from the publisher to every host")
    rows: list[Sequence[object]] = []
    closing = []
    for count in (20,) if given.quick else (20, 40):
        results = trio.run(measure, count, 10 if given.quick else 30)
        slowest = {}
        for name, (rounds, lost) in results.items():
            middle = statistics.median(latency for round_ in rounds for latency in round_)
            slowest[name] = statistics.median(round_[-1] if round_ else math.inf for round_ in rounds)
            rows.append((count, name, 1e3 * middle, 1e3 * slowest[name], lost))
        summary = f"gossip, {count} hosts: slowest host {1e3 * slowest['gossip']:.0f} ms"
        closing.append(
            f"{summary}, ratio {slowest['gossip'] / slowest['unicast']:.2f} against unicast, reported, no bar"
        )
    bench.table(["hosts", "way", "median, ms", "slowest host's median, ms", "lost"], rows)
    print("\n".join(closing))
    return 0


if __name__ == "__main__":
    sys.exit(main())
