"""Measure the connection limits of a real coordinator: silent connections, tiny requests, idle connections to the page.

The coordinator runs in a process of its own (benchmarks/load/station.py) with 1,024 descriptors, over libp2p and HTTP.
It treats each 127.x.y.0/24 but 127.0.0.0/24 as a public subnet.

    tiny requests         honest requests, while 40 peers send 1,000 requests that cost little, each again 5 s after its
                          answer
    silent connections    newcomers, while one address opens 300 connections per second that never send a byte
    idle connections      a newcomer, the Head and the page, while 1,100 connections to the page send nothing
"""

import contextlib
import http.client
import resource
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.light_node import lease_of, opened
from benchmarks.attacks.sourced_sockets import dialled_from
from benchmarks.load.light import LightNode
from benchmarks.load.station import Station, station
from echo2.p2p.discovery.messages import ReachableRequest
from echo2.p2p.errors import P2PError
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import encode
from echo2.protocol.versions import HeadRequest

SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "run": {"group_size": 2, "limit": 6, "batch_groups": 1, "staleness": 4, "heldout": 4, "evaluate_every": 1000},
}
DESCRIPTORS: Final = 1024
SILENT_RATE: Final = 300
"""Silent connections per second."""
IN_TIME: Final = 5.0
"""Seconds within which a newcomer has to be answered."""
ASKS: Final = 1000
"""Tiny requests that are repeated."""
PEERS: Final = 40
"""Peers that send the tiny requests."""
AGAIN: Final = 5.0
"""Seconds after which a tiny request that was answered or refused is repeated."""
FEWEST: Final = 20
"""Least number of honest requests for a share: on a busy machine the measurement continues until there are as many."""
IDLE: Final = 1100
"""Idle connections to the page."""


class Doors(NamedTuple):
    """Results. `came`: share of the newcomers that were answered within `IN_TIME`, beside silent connections.
    `answered`: share of the honest requests that were answered, beside tiny ones. `served`: whether each service
    worked, beside idle connections to the page."""

    came: float
    newcomers: int
    answered: float
    requests: int
    served: dict[str, bool]


def measured(seconds: float) -> Doors:
    """Measure beside tiny requests and beside silent connections, for `seconds` each, then beside idle connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    options = ("--descriptors", str(DESCRIPTORS), "--foreign-loopback")
    with (
        tempfile.TemporaryDirectory(prefix="echo2-flood-") as folder,
        station(Path(folder) / "run", sections=SECTIONS, options=options) as place,
    ):
        honest: list[bool] = trio.run(_questions, place, seconds)
        place.measure()  # raises where the coordinator has ended
        with _connections(place.port, "127.9.9.9", SILENT_RATE):
            time.sleep(2.0)
            times: list[float] = trio.run(_newcomers, place, seconds)
        place.measure()
        served = _visited(place)
    came = sum(one <= IN_TIME for one in times) / len(times)
    return Doors(came, len(times), sum(honest) / len(honest), len(honest), served)


async def _newcomers(place: Station, seconds: float) -> list[float]:
    """Return per newcomer the seconds until it was answered, at most 10. Each comes from a subnet of its own."""
    waits: list[float] = []

    async def come(number: int) -> None:
        began, end = trio.current_time(), 2 * IN_TIME
        with trio.move_on_after(end):
            while not await _answered(place, f"127.{20 + number % 200}.{number // 200}.1"):  # noqa: ASYNC110
                await trio.sleep(0.2)
        waits.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for number in range(max(20, round(4 * seconds))):
            nursery.start_soon(come, number)
            await trio.sleep(0.25)
    return waits


async def _answered(place: Station, source: str) -> bool:
    """Tell whether a peer that connects from `source` gets the Head."""
    came = False
    async with trio.open_nursery() as nursery:
        with contextlib.suppress(P2PError):
            peer = await _peer(nursery, place, source)
            await peer.request(place.run.peer_id, "head", encode(HeadRequest()), timeout=IN_TIME)
            came = True
        nursery.cancel_scope.cancel()
    return came


async def _questions(place: Station, seconds: float) -> list[bool]:
    """Return for each honest request whether it was answered, while `ASKS` tiny ones are sent again and again."""
    answered: list[bool] = []
    ask, head = encode(ReachableRequest(ports=[4310])), encode(HeadRequest())

    async def strangers(peer: Peer) -> None:
        while True:
            with contextlib.suppress(P2PError):
                await peer.request(place.run.peer_id, "reachable", ask, timeout=30.0)
            await trio.sleep(AGAIN)

    async def honest(peer: Peer) -> None:
        while True:
            try:
                await peer.request(place.run.peer_id, "head", head, timeout=10.0)
                answered.append(True)
            except P2PError:
                answered.append(False)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        friends = [await _peer(nursery, place, f"127.5.{n}.1") for n in range(5)]
        crowd = [await _peer(nursery, place, f"127.6.{n}.1") for n in range(PEERS)]
        for peer in crowd:
            for _ in range(ASKS // PEERS):
                nursery.start_soon(strangers, peer)
        await trio.sleep(1.0)
        for peer in friends:
            nursery.start_soon(honest, peer)
        await trio.sleep(seconds)
        while len(answered) < FEWEST:  # each of them ends after 10 s at the latest  # noqa: ASYNC110
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    return answered


async def _peer(nursery: trio.Nursery, place: Station, source: str) -> Peer:
    """Connect a new peer to the coordinator from the local address `source`. Raises `P2PError`."""
    peer = Peer(LibP2PTransport(Ed25519PrivateKey.generate(), [], patience=20.0), seed=0)
    nursery.start_soon(peer.run)
    await peer.ready()
    with dialled_from(source):
        await peer.dial(place.addresses)
    return peer


def _visited(place: Station) -> dict[str, bool]:
    """Return for each service whether it works while `IDLE` connections to the page send nothing."""
    head = place.run.folder.path / "head"
    with _connections(place.page, "127.0.0.1", 2000, most=IDLE):
        time.sleep(2.0)
        before = head.read_bytes()
        came = trio.run(_worked, place)
        served = {
            "a newcomer works": came,
            "a Head comes out": _changes(lambda: head.read_bytes() != before),
            "the page answers": _page(place),
        }
    return served


async def _worked(place: Station) -> bool:
    """Tell whether a new node can say hello, get a lease, and submit a group."""
    node, taken = LightNode(place.terms()), False
    async with trio.open_nursery() as nursery:
        with contextlib.suppress(P2PError):
            peer = await _peer(nursery, place, "127.40.0.1")
            await peer.request(place.run.peer_id, "hello", node.hello(), timeout=10.0)
            body = opened(await peer.request(place.run.peer_id, "lease", node.ask(), timeout=10.0))
            if isinstance(body, bytes):
                group = node.submit(lease_of(body))
                taken = isinstance(opened(await peer.request(place.run.peer_id, "submit", group, timeout=10.0)), bytes)
        nursery.cancel_scope.cancel()
    return taken


def _changes(condition: Any, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _page(place: Station) -> bool:
    """Tell whether the page answers another address."""
    visitor = http.client.HTTPConnection("127.0.0.1", place.page, timeout=5.0, source_address=("127.30.0.1", 0))
    try:
        visitor.request("GET", "/")
        return visitor.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        visitor.close()


@contextlib.contextmanager
def _connections(port: int, source: str, rate: float, most: int = 1 << 30) -> Iterator[None]:
    """Keep silent connections open: `rate` new ones per second, at most `most` at a time; replace those that end."""
    stopping = threading.Event()
    thread = threading.Thread(target=_silent, args=(port, source, rate, most, stopping), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _silent(port: int, source: str, rate: float, most: int, stopping: threading.Event) -> None:
    sockets, waiting = set[socket.socket](), selectors.DefaultSelector()
    try:
        while not stopping.wait(1 / rate):
            for key, _ in waiting.select(0):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                waiting.unregister(one)
                sockets.discard(one)
                one.close()
            if len(sockets) < most:
                one = socket.socket()
                one.setblocking(False)
                one.bind((source, 0))
                one.connect_ex(("127.0.0.1", port))
                sockets.add(one)
                waiting.register(one, selectors.EVENT_READ)
    finally:
        for one in sockets:
            one.close()
        waiting.close()
