"""Attacks on HTTPS and on the page: the product's listeners over real sockets, on a fake clock. All clients come from
loopback, a trusted proxy's address, and name theirs by PROXY headers."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from echo2.coordinator.accounts.ledger_tiles import PART_BYTES, BundlePart
from echo2.coordinator.web.page_listener import Listener, WebLimits
from echo2.coordinator.web.rationed_reads import MOST_OF_PARTY, MOST_WAITING, RationedReads
from echo2.coordinator.web.tile_routes import TileRoutes
from echo2.p2p.https.client_limits import ClientConnections, ClientLimits, HttpsLimits
from echo2.p2p.https.combined_network import PeerAndHttps
from echo2.p2p.limits.party import Parties
from tests.support import https
from tests.support.clock import run_fake
from tests.support.doors import PROVEN
from tests.support.limit_attacks.attack import SLACK, Taken, lacking

LOOPBACK = "127.0.0.1"
HEAD = b"POST /echo2/1/rpc/hello HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n"
PAGE_HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
STEP = 9
"""Bytes between two places at which an attacker stops."""
Served = Callable[[int], Awaitable[bool]]
"""(port) -> whether a party with accepted work is answered there."""


def known_parties() -> Parties:
    parties = Parties(proxies=[LOOPBACK])
    parties.keep(["9.9.9.0/24"])
    return parties


def connected(port: int, ip: str) -> socket.socket:
    """Connect to a port of this machine as the client of a proxy at `ip`."""
    opened = socket.create_connection((LOOPBACK, port))
    opened.sendall(f"PROXY TCP4 {ip} {LOOPBACK} 5000 {port}\r\n".encode())
    opened.setblocking(False)
    return opened


def tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def answer(port: int, ip: str, request: bytes, context: ssl.SSLContext | None) -> bytes:
    """Send a request; return the first bytes of its answer, none if there is none within 5 s."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(5.0):
            opened = connected(port, ip)
            reader, writer = await asyncio.open_connection(
                sock=opened, ssl=context, server_hostname=None if context is None else "x"
            )
            try:
                writer.write(request)
                return await reader.read(100)
            finally:
                writer.close()
    return b""


def first_flight() -> bytes:
    """Return the first bytes of a TLS client."""
    out = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        tls().wrap_bio(ssl.MemoryBIO(), out, server_hostname="x").do_handshake()
    return out.read()


@asynccontextmanager
async def half_clients(port: int, ips: list[str], request: bytes, *, encrypted: bool) -> AsyncIterator[None]:
    """Connect from these addresses in rotation, and stop after each so many bytes of the handshake and the request."""
    opened, context = list[Any](), tls()
    cuts = [(False, first_flight()[:at]) for at in range(0, len(first_flight()), 8 * STEP)] if encrypted else []
    cuts += [(encrypted, request[:at]) for at in range(0, len(request), 5 * STEP if encrypted else 2)]
    for number, (within_tls, part) in enumerate(cuts):
        one = connected(port, ips[number % len(ips)])
        opened.append(one)
        if within_tls:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(5.0):
                    _, writer = await asyncio.open_connection(sock=one, ssl=context, server_hostname="x")
                    writer.write(part)
                    opened.append(writer)
        elif part:
            with suppress(OSError):  # it was refused, or has given way
                one.send(part)
    try:
        yield
    finally:
        for one in opened:
            one.close()


async def besieged(
    port: int,
    measure: Callable[[], float],
    clients: Any,
    served: Served,
    seconds: float,
) -> Taken:
    """Attack a listener by `clients`, while a party with accepted work asks."""
    before = measure()
    async with clients:
        await asyncio.sleep(0.1)
        during, stopped = measure(), asyncio.get_running_loop().time()
        refused = lacking(await served(port), "an answer")
        await asyncio.sleep(stopped + seconds + SLACK - asyncio.get_running_loop().time())
        return Taken(before, during, measure(), refused)


def over_https(
    measure: Callable[[PeerAndHttps], float], ips: list[str], **limits: int
) -> Callable[[Path, float], Taken]:
    """Return an attack on the HTTPS server."""

    async def served(port: int) -> bool:
        body = await answer(port, PROVEN, HEAD.replace(b"900", b"4") + b"text", tls())
        return body.startswith(b"HTTP/1.1 200")

    async def main(seconds: float) -> Taken:
        under: Any = HttpsLimits(parties=known_parties(), **limits)
        async with https.served(hello=https.echo, limits=under) as server:
            port = int((await https.address_of(server)).split("/")[4])
            clients = half_clients(port, ips, HEAD + bytes(900), encrypted=True)
            return await besieged(port, lambda: measure(server), clients, served, seconds)

    return lambda folder, seconds: run_fake(lambda: main(seconds))


def strangers(connections: ClientConnections) -> float:
    return sum(not client.known for client in connections._clients.values())


def https_strangers(server: PeerAndHttps) -> float:
    return strangers(server.https.listener.clients)


def https_household(server: PeerAndHttps) -> float:
    return server.https.listener.clients._open["8.8.0.1"]


def https_unfinished(server: PeerAndHttps) -> float:
    return server.https.listener._unfinished.total


def at_page(measure: Callable[[Listener], float], ips: list[str], **limits: int) -> Callable[[Path, float], Taken]:
    """Return an attack on the page."""

    async def show(request: web.Request) -> web.Response:
        return web.Response(text="the page")

    async def served(port: int) -> bool:
        return (await answer(port, PROVEN, PAGE_HEAD, None)).startswith(b"HTTP/1.1 200")

    async def main(seconds: float) -> Taken:
        app, under = web.Application(), WebLimits(parties=known_parties(), **limits)  # type: ignore[arg-type]
        app.router.add_get("/", show)
        listener = Listener(app, under, asyncio.get_running_loop().time)
        port = await listener.start(LOOPBACK, 0)
        try:
            clients = half_clients(port, ips, PAGE_HEAD, encrypted=False)
            return await besieged(port, lambda: measure(listener), clients, served, seconds)
        finally:
            await listener.stop()

    return lambda folder, seconds: run_fake(lambda: main(seconds))


def page_strangers(listener: Listener) -> float:
    return strangers(listener.connections)


def page_household(listener: Listener) -> float:
    return listener.connections._open["8.8.0.1"]


def request_rate(limits: Callable[[Parties], ClientLimits]) -> Callable[[Path, float], Taken]:
    """Return an attack by requests of one household, more than it may send."""

    def attack(folder: Path, seconds: float) -> Taken:
        under = limits(known_parties())
        connections = ClientConnections(under)
        connections.add("eve", "8.8.0.1", 0.0)
        connections.add("node", PROVEN, 0.0)
        waits = [connections.admit("eve", 0.0) for _ in range(2 * int(under.burst))]
        refused = lacking(connections.admit("node", 0.0) == 0, "a request")
        return Taken(0, waits[-1], connections._buckets.delay("8.8.0.1", seconds), refused)

    return attack


class ByHand(Executor):
    """An executor whose actions are done when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, action: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: action(*args, **kwargs)))
        return future

    def work(self) -> None:
        """Do the oldest action."""
        future, action = self.waiting.pop(0)
        if future.set_running_or_notify_cancel():
            future.set_result(action())


def waiting_reads(parties: int, each: int, *, of_party: bool) -> Callable[[Path, float], Taken]:
    """Return an attack by reads that wait, `each` of so many parties, and whose clients leave."""

    async def main(seconds: float) -> Taken:
        reads, thread = RationedReads("rows", lambda: 0.0), ByHand()
        reads._thread = thread  # type: ignore[assignment]
        tasks = [asyncio.create_task(reads.read(f"eve {number % parties}", lambda: None)) for number in range(each)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        def waiting() -> float:
            return reads._waiting["eve 0"] if of_party else sum(reads._waiting.values()) - reads._waiting["node"]

        during = waiting()
        node = asyncio.create_task(reads.read("node", lambda: "a row"))
        for task in tasks:  # their clients leave, halfway
            task.cancel()
        served, rounds = False, 0
        while not node.done() and rounds < 3 * MOST_WAITING:
            rounds += 1
            if thread.waiting:
                thread.work()
            await asyncio.sleep(0.05)
        with suppress(web.HTTPServiceUnavailable):
            served = node.done() and node.result() == "a row"
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(seconds)
        return Taken(0, during, waiting(), lacking(served, "a row"))

    return lambda folder, seconds: run_fake(lambda: main(seconds))


READS_OF_ALL = waiting_reads(MOST_WAITING * 3 // 16, MOST_WAITING, of_party=False)
READS_OF_A_PARTY = waiting_reads(1, 2 * MOST_OF_PARTY, of_party=True)


class LongBundle:
    """A ledger whose bundles have many parts."""

    def sealed_runspec(self) -> bytes:
        return b"runspec"

    def ledger_bundle(self, place: object, first: int) -> BundlePart:
        return BundlePart(bytes(PART_BYTES), first + 1)


class Inline(Executor):
    """An executor that does each action at once."""

    def submit(self, action: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(action(*args, **kwargs))
        return future


def unread_parts(folder: Path, seconds: float) -> Taken:
    """Ask for bundles and receive nothing of them, over all connections that strangers may have."""
    bundle = b"GET /ledger/entries/000 HTTP/1.1\r\nHost: x\r\n\r\n"

    async def served(port: int) -> bool:
        return (await answer(port, PROVEN, bundle, None)).startswith(b"HTTP/1.1 200")

    @asynccontextmanager
    async def deaf(port: int) -> AsyncIterator[None]:
        opened = list[socket.socket]()
        for number in range(12):
            one = connected(port, f"8.8.{number}.1")
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.send(bundle)
            opened.append(one)
            await asyncio.sleep(0.05)
        yield
        for one in opened:
            one.close()

    async def main() -> Taken:
        app, under = web.Application(), WebLimits(parties=known_parties(), connections=8)
        source: Any = LongBundle()
        routes = TileRoutes(source, asyncio.get_running_loop().time)
        routes._reads._thread = Inline()  # type: ignore[assignment]
        routes.add_to(app)
        listener = Listener(app, under, asyncio.get_running_loop().time)
        port = await listener.start(LOOPBACK, 0)
        try:
            return await besieged(port, lambda: page_strangers(listener), deaf(port), served, seconds)
        finally:
            await listener.stop()

    taken: Taken = run_fake(main)
    return taken
