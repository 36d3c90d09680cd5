"""Measure connections that come and go, and silent ones: `python -m benchmarks.connections [--quick] [--host node]`.

A host of the product (`LibP2PTransport`, with the connection limits of a coordinator or of a node) runs in a process of
its own. It treats each 127.x.y.0/24 but 127.0.0.0/24 as a public subnet.

    closed   16 peers at a private address make and close 10,000 connections (--quick: 400), each with a whole
             handshake; then a newcomer with a new key connects. Bars: the host's descriptors and tasks at most 1.05
             times those after the first 16, at most ten minutes, 0.999 of the connections made
    silent   300 connections per second are opened that never send a byte, first from one address, then from 300
             subnets. Meanwhile a newcomer comes every half second for 30 s (--quick: 8), each from an address and a
             subnet of its own. Bar: 0.95 of the newcomers are accepted within 5 s
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final, NoReturn

import psutil
import trio

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.peer.id import ID
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.multiaddr import address_of, peer_of
from echo2.p2p.peer.peer import Peer
from echo2.runtime import descriptors

PLACES: Final = {"coordinator": 1024, "node": 256}
"""Most connections of each kind of host."""
HOME: Final = "127.0.0."
"""The only loopback addresses that count as private."""
LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
VISITORS: Final = 16
LOOKS: Final = 5
"""Number of times that the host's state is taken while connections are made."""
RATE, KEPT = 300, 2_000
"""Silent connections per second, and the number that is kept open."""
EVERY, WITHIN = 0.5, 5.0
"""Seconds from one newcomer to the next, and until one has to be accepted."""
LONGEST: Final = 600.0
"""Most seconds for all connections of `closed`."""


def foreign(ip: str) -> str | None:
    """Return the subnet of a loopback address as if it were public; None at `HOME`."""
    return None if ip.startswith(HOME) else f"{ip.rpartition('.')[0]}.0/24"


# --- the host --------------------------------------------------------------------------------------------------------


async def serve(places: int) -> None:
    """Run the host with at most `places` connections; answer each line on stdin with its state, until stdin ends."""
    descriptors.raise_limit()
    transport = LibP2PTransport(
        generate_key(), [LOOPBACK], limits=PeerLimits(connections=places, parties=Parties(foreign))
    )
    peer = Peer(transport, seed=0)
    peer.serve("head", _head, limit=64)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.run)
        await peer.ready()
        print(json.dumps(transport.addresses()), flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            counts = {
                "descriptors": psutil.Process().num_fds(),
                "connected": len(transport.peers()),
                "tasks": trio.lowlevel.current_statistics().tasks_living,
                "refused": sum(transport.refusals().values()),
            }
            print(json.dumps(counts), flush=True)
        nursery.cancel_scope.cancel()


async def _head(peer: str, request: bytes) -> bytes:
    return b"head"


class Host:
    """The host as a child process. `cpu`: returns its CPU times."""

    def __init__(self, places: int) -> None:
        argv = [sys.executable, "-m", "benchmarks.connections", "--serve", str(places)]
        self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = str(self._next_report()[0])
        self.cpu = psutil.Process(self._child.pid).cpu_times

    def look(self) -> dict[str, int]:
        assert self._child.stdin is not None
        self._child.stdin.write("look\n")
        self._child.stdin.flush()
        counts: dict[str, int] = self._next_report()
        return counts

    async def emptied(self) -> dict[str, int]:
        """Return the host's state once no peer is connected, or after 30 s."""
        with trio.move_on_after(30):
            while self.look()["connected"]:  # noqa: ASYNC110
                await trio.sleep(0.2)
        return self.look()

    def end(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)

    def _next_report(self) -> Any:
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())


@contextlib.contextmanager
def host(places: int) -> Iterator[Host]:
    one = Host(places)
    try:
        yield one
    finally:
        one.end()


@contextlib.asynccontextmanager
async def peer_running() -> AsyncIterator[LibP2PTransport]:
    """Run a peer with a new key and no listener."""
    transport = LibP2PTransport(generate_key(), [])
    peer = Peer(transport, seed=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.run)
        await peer.ready()
        yield transport
        nursery.cancel_scope.cancel()


# --- made and closed -------------------------------------------------------------------------------------------------


async def closed(host: Host, count: int) -> list[Claim]:
    """Make and close `count` connections; print the host's state meanwhile, and return the claims."""
    attempts, failed = 0, 0

    async def visit(until: int) -> None:
        nonlocal attempts, failed
        async with peer_running() as transport:
            while attempts < until:
                attempts += 1
                try:
                    await transport.drop(await transport.dial([host.address]))
                except Unreachable:
                    failed += 1

    rows, began, share = [], time.perf_counter(), count // LOOKS
    for part in range(LOOKS + 1):  # the first round is short: one-time allocations must not count
        async with trio.open_nursery() as nursery:
            for _ in range(VISITORS):
                nursery.start_soon(visit, share * part or VISITORS)
        rows.append((attempts, *(await host.emptied()).values(), time.perf_counter() - began))
    async with peer_running() as newcomer:
        await newcomer.dial([host.address])
    bench.table(["made", "descriptors", "connected", "tasks", "refused", "seconds"], rows)
    first, last = rows[0], rows[-1]
    print(f"{failed} of {attempts} failed; a newcomer got in afterwards\n")
    return [
        Claim(
            f"descriptors after {attempts:,} connections", last[1] / first[1], f"after {first[0]}", 1.05, at_most=True
        ),
        Claim(f"tasks after {attempts:,} connections", last[3] / first[3], f"after {first[0]}", 1.05, at_most=True),
        Claim("seconds for all", last[-1] / LONGEST, "ten minutes", 1.0, at_most=True),
        Claim("connections made", 1 - failed / attempts, "all", 0.999),
    ]


# --- silent ----------------------------------------------------------------------------------------------------------


def attack(port: int, subnets: int) -> NoReturn:
    """Open silent connections from one address in each of `subnets` subnets, until killed. Above `KEPT`, the oldest is
    closed."""
    descriptors.raise_limit()
    sockets: deque[socket.socket] = deque()
    began, attempts = time.monotonic(), 0
    while True:
        while attempts < (time.monotonic() - began) * RATE:
            one = socket.socket()
            one.setblocking(False)
            one.bind((f"127.{66 + attempts % subnets // 200}.{attempts % subnets % 200}.66", 0))
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
            sockets.append(one)
            attempts += 1
            if len(sockets) > KEPT:
                sockets.popleft().close()
        time.sleep(1 / RATE)


async def came(address: str, source: str) -> float | None:
    """Return the seconds until a newcomer from the address `source` is connected; None after `WITHIN`."""
    began = time.perf_counter()
    async with peer_running() as transport:
        network, target = transport.host.get_network(), ID.from_string(peer_of(address))
        while (now := time.perf_counter()) < began + WITHIN:
            try:
                with trio.fail_after(began + WITHIN - now):
                    await network.dial_addr(Multiaddr(address), target, (source, 0))
                return time.perf_counter() - began
            except Exception:  # upstream raises a dozen types for a closed connection
                await trio.sleep(0.2)
    return None


async def newcomers(host: Host, seconds: float, first: int) -> list[float | None]:
    """Let newcomers connect for `seconds`, from subnets 127.`first`.0 on; return what `came` gives for each."""
    waits: list[float | None] = []

    async def one(number: int) -> None:
        waits.append(await came(host.address, f"127.{first + number // 200}.{number % 200}.7"))

    async with trio.open_nursery() as nursery:
        for number in range(round(seconds / EVERY)):
            nursery.start_soon(one, number)
            await trio.sleep(EVERY)
    return waits


async def silent(host: Host, seconds: float) -> list[Claim]:
    """Measure newcomers for `seconds` each: calm, and under both attacks; print the table, and return the claims."""
    rows, shares = [], []
    for name, first, subnets in (("calm", 100, 0), ("from one address", 150, 1), ("from 300 subnets", 200, RATE)):
        attacker = None
        if subnets:
            port = address_of(host.address).port
            argv = [sys.executable, "-m", "benchmarks.connections", "--attack", str(port), str(subnets)]
            attacker = subprocess.Popen(argv)  # noqa: ASYNC220
            await trio.sleep(3)
        before, refused = host.cpu(), host.look()["refused"]
        began = time.perf_counter()
        waits = await newcomers(host, seconds, first)
        used, lasted = host.cpu(), time.perf_counter() - began
        stands = host.look()
        if attacker is not None:
            attacker.kill()
            attacker.wait()
        came_in = sorted(time for time in waits if time is not None)
        shares.append(len(came_in) / len(waits))
        cpu = used.user + used.system - before.user - before.system
        middle = came_in[len(came_in) // 2] if came_in else float("nan")
        turned_away = (stands["refused"] - refused) / lasted
        rows.append((name, len(waits), shares[-1], middle, cpu / lasted, turned_away, stands["descriptors"]))
    bench.table(
        [
            "300 silent ones a second",
            "newcomers",
            "within 5 s",
            "median s",
            "CPU of the host",
            "refused a second",
            "descriptors",
        ],
        rows,
    )
    return [
        Claim("newcomers beside 300 silent connections a second from one address", shares[1], "all", 0.95),
        Claim("newcomers beside 300 silent connections a second from 300 subnets", shares[2], "all", 0.95),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Connections that come and go, and silent ones.")
    parser.add_argument("--quick", action="store_true", help="400 connections, 8 s of silence")
    parser.add_argument("--host", choices=PLACES, default="coordinator", help="the host whose connection limits apply")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--attack", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve is not None:
        trio.run(serve, options.serve)
        return 0
    if options.attack is not None:
        attack(*options.attack)
    bench.header(f"connections: a {options.host}'s host")
    places = PLACES[options.host]
    with host(places) as one:
        claims = trio.run(closed, one, 400 if options.quick else 10_000)
    with host(places) as one:
        claims += trio.run(silent, one, 8.0 if options.quick else 30.0)
    return bench.close(claims)


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
