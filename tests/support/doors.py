"""The inbound side of a host without sockets, on a fake clock: the product's muxer, limits and requests, over in-memory
connections. For tests of what peers may occupy."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from echo2._libp2p.stream_muxer.exceptions import MuxedStreamReset
from echo2.p2p.errors import P2PError
from echo2.p2p.guard import guard_handler
from echo2.p2p.handlers import Handlers
from echo2.p2p.libp2p.connection_gater import Connections
from echo2.p2p.libp2p.muxed_connection import MuxConn, MuxStream
from echo2.p2p.libp2p.stream import LibP2PStream
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.peer import rpc
from tests.support.muxed_pairs import on_fake_time, session

METHODS = {
    "submit": "submit", "receipts": "verdicts", "hello": "hello", "lease": "lease", "step": "step", "waiting": "plan",
    "gossip": "gossip", "other": "documents",
}  # fmt: skip
"""A method of each class."""
PAYLOAD = bytes(3000)
SUBNETS = [f"8.8.{number}.1" for number in range(8)]
PROVEN = "9.9.9.9"


def frame(data: bytes) -> bytes:
    """Return a frame of echo2's streams."""
    return len(data).to_bytes(4, "big") + data


def request_bytes(method: str, payload: bytes) -> bytes:
    """Return all bytes that a client sends on a stream of requests."""
    return frame(method.encode()) + frame(payload)


def cuts(whole: bytes, method: str) -> list[int]:
    """Return where an attacker stops: in and after each part, and one byte before the end."""
    name = 4 + len(method)
    return [0, 1, 4, name - 1, name, name + 2, name + 4, name + 5, len(whole) // 2, len(whole) - 1]


class Door:
    """A host that answers requests. `gate`: its limits. `server`: its requests. `nursery`: of all its tasks."""

    def __init__(self, nursery: trio.Nursery, limits: PeerLimits | None = None) -> None:
        self.nursery = nursery
        self.gate = Connections(None, limits or PeerLimits(), lambda newest: None)
        self.handlers = Handlers()
        self.server = rpc.Server(self.gate.origins.of, (self.handlers,))

    def serve(self, method: str, handler: Callable[[str, bytes], Awaitable[bytes]], limit: int = 1 << 20) -> None:
        self.handlers.serve(method, handler, limit=limit)

    async def connect(self, ip: str, *, rate: float | None = None, latency: float = 0.0) -> "Caller":
        """Connect a new peer from `ip`. `rate`: bytes per second of its line, None for no limit; `latency`: seconds one
        way."""
        ends = trio.testing.memory_stream_pair()
        if rate is not None:
            ends = self._slow_line(rate, latency)
        near, far = (MuxConn(end, end.remote_peer) for end in map(session, ends, (True, False)))
        far.on_load = self.gate.on_load
        self.gate.origins.on_connection(str(far.peer_id), far, ip, "")
        for one in (near, far):
            self.nursery.start_soon(one.start)
            await one.event_started.wait()
        self.nursery.start_soon(self._accept, far)
        return Caller(near, far, self.nursery)

    async def _accept(self, conn: MuxConn) -> None:
        while not conn.is_closed:
            with trio.move_on_after(3600):
                stream = await conn.accept_stream()
                self.nursery.start_soon(self._answer, stream, str(conn.peer_id))

    async def _answer(self, stream: Any, peer: str) -> None:
        wrapped = _wrapped(stream, peer, self.nursery)
        await guard_handler(self.server.answer)(wrapped)
        await wrapped.linger()

    def _slow_line(self, rate: float, latency: float) -> tuple[trio.abc.Stream, trio.abc.Stream]:
        near, near_line = trio.testing.memory_stream_pair()
        far, far_line = trio.testing.memory_stream_pair()
        for source, target in ((near_line, far_line), (far_line, near_line)):
            self.nursery.start_soon(_pump, source, target, rate, latency, self.nursery)
        return near, far


class Caller:
    """A peer that is connected to a door. `far`: the door's end of the connection."""

    def __init__(self, near: MuxConn, far: MuxConn, nursery: trio.Nursery) -> None:
        self.near, self.far, self._nursery = near, far, nursery

    @property
    def peer(self) -> str:
        """The peer's name at the door."""
        return str(self.far.peer_id)

    async def open(self) -> MuxStream:
        stream = await self.near.open_stream()
        assert isinstance(stream, MuxStream)
        return stream

    async def ask(self, method: str, payload: bytes = b"") -> bytes:
        """Send a request and return its answer. Raises `P2PError`."""
        return await rpc.ask(_wrapped(await self.open(), "door", self._nursery), method, payload)

    async def is_answered(self, method: str, payload: bytes = b"", within: float = 5.0) -> bool:
        """Tell whether a request is answered in time."""
        with trio.move_on_after(within):
            try:
                await self.ask(method, payload)
                return True
            except P2PError:
                return False
        return False


def _wrapped(stream: Any, peer: str, nursery: trio.Nursery) -> LibP2PStream:
    async def drop(peer: str) -> None:
        raise AssertionError(f"the connection with {peer} is stuck")

    return LibP2PStream(
        SimpleNamespace(muxed_stream=stream, reset=stream.reset), peer, nursery, 20.0, drop  # type: ignore[arg-type]
    )  # fmt: skip


async def _pump(
    source: trio.abc.Stream, target: trio.abc.Stream, rate: float, latency: float, nursery: trio.Nursery
) -> None:
    """Move bytes at `rate`, each `latency` seconds late, ten times a second."""

    async def deliver(data: bytes) -> None:
        await trio.sleep(latency)
        await target.send_all(data)

    while data := await source.receive_some(max(1, round(rate / 10))):
        await trio.sleep(len(data) / rate)
        nursery.start_soon(deliver, bytes(data))


async def echo(peer: str, request: bytes) -> bytes:
    return request


async def size(peer: str, request: bytes) -> bytes:
    return b"%d" % len(request)


def on_a_door(main: Callable[[Door], Awaitable[None]], limits: PeerLimits | None = None) -> None:
    """Run a door that answers a method of each class, one subnet of which has accepted work."""

    limits = limits or PeerLimits()

    async def within() -> None:
        async with trio.open_nursery() as nursery:
            door = Door(nursery, limits)
            for method in METHODS.values():
                door.serve(method, echo)
            limits.parties.keep(["9.9.9.0/24"])
            await main(door)
            nursery.cancel_scope.cancel()

    on_fake_time(within)


async def stop_halfway(caller: Caller, each: int) -> None:
    """Send a part of a request on each stream, until the connection may open no more."""
    parts = [(method, at) for method in METHODS.values() for at in cuts(request_bytes(method, PAYLOAD), method)]
    for number in range(each):
        method, at = parts[13 * number % len(parts)]
        stream = await caller.open()
        if at:
            with suppress(MuxedStreamReset):  # it gave way to others
                await stream.write(request_bytes(method, PAYLOAD)[:at])


async def all_answered(caller: Caller, each: int = 1) -> bool:
    """Ask for a method of each class, `each` times at once; tell whether all are answered within 5 s."""
    answers = list[bool]()

    async def ask(method: str) -> None:
        answers.append(await caller.is_answered(method, PAYLOAD))

    async with trio.open_nursery() as nursery:
        for kind, method in METHODS.items():
            for _ in range(1 if kind == "waiting" else each):
                nursery.start_soon(ask, method)
    return all(answers)
