"""A whole network in one process: the transport for tests and simulations. Addresses: places.py.

1. Time is the event loop's clock (`anyio.current_time`), chance is `random.Random(seed)`: on a loop with a fake
   clock, a run repeats exactly.
2. Streams are reliable, as TCP is: loss affects dials, and the opening of streams. A partition or a frozen peer delays
   frames; after `patience` seconds without progress, a waiting stream is reset.
3. A frame leaves when the sender's uplink and the link are free, takes length / bandwidth, and arrives a delay
   later. With `WINDOW_BYTES` bytes in flight on a stream, `send` waits.
4. A frozen peer is like a process under SIGSTOP: its connections stay open, but carry no bytes. A killed peer resets
   all its streams, and its id may return with a new `transport`.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import anyio
from anyio.abc import TaskGroup

from benchmarks.memory_network.places import MemoryAddresses
from echo2.p2p.errors import LocalNetworkFault, TooLong, Unreachable
from echo2.p2p.guard import guard_handler
from echo2.p2p.limits.least_rate import RATE_SECONDS
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.party import Parties
from echo2.p2p.multiaddr import Route, peer_of
from echo2.p2p.transport import Stream, StreamHandler

WINDOW_BYTES = 1 << 18
"""Bytes in flight on one stream before `send` waits."""


@dataclass(frozen=True)
class Link:
    """One direction between two peers. `loss`: probability that a dial or an open fails. `delay`:
    seconds one way. `bandwidth`: bytes per second, None for no limit."""

    loss: float = 0.0
    delay: float = 0.0
    bandwidth: float | None = None


class MemoryNetwork:
    """The simulated network: its peers, links, partitions and frozen peers."""

    def __init__(self, seed: int, *, link: Link | None = None, patience: float = 20.0) -> None:
        """`patience`: seconds without progress before a waiting stream is reset."""
        self.random = Random(seed)
        self.patience = patience
        self.transports: dict[str, MemoryTransport] = {}
        self._default = link or Link()
        self._links: dict[tuple[str, str], Link] = {}
        self._uplinks: dict[str, float] = {}
        self._busy: dict[tuple[str, str | None], float] = {}
        self._groups: dict[str, int] = {}
        self._frozen: set[str] = set()
        self.addresses = MemoryAddresses()
        self.origins: dict[str, Origin] = {}
        """The origin of each peer that is not its own party."""
        self.parties = Parties()

    def transport(self, peer_id: str) -> "MemoryTransport":
        """Create a transport for `peer_id`. Raises `LocalNetworkFault` while that peer is alive already."""
        if peer_id in self.transports:
            raise LocalNetworkFault(f"peer {peer_id} is already in this network")
        self.transports[peer_id] = MemoryTransport(self, peer_id)
        return self.transports[peer_id]

    def move(self, peer: str) -> None:
        """Move a peer to another address, as a laptop moves: its connections end, and its old address leads to no
        peer."""
        self.addresses.move(peer)
        self.transports[peer].disconnect_all()

    def set_link(self, a: str, b: str, link: Link) -> None:
        """Set both directions between two peers."""
        self._links[a, b] = self._links[b, a] = link

    def set_uplink(self, peer: str, bandwidth: float) -> None:
        """Limit the bytes per second that `peer` sends to all others together."""
        self._uplinks[peer] = bandwidth

    def partition(self, *groups: Sequence[str]) -> None:
        """Separate the groups: peers of different ones no longer reach each other; a peer in no group reaches all."""
        self._groups = {peer: number for number, group in enumerate(groups) for peer in group}
        self._wake()

    def heal(self) -> None:
        """Undo `partition`."""
        self.partition()

    def freeze(self, peer: str) -> None:
        """Freeze a peer as SIGSTOP would."""
        self._frozen.add(peer)
        self._wake()

    def thaw(self, peer: str) -> None:
        """Resume a frozen peer."""
        self._frozen.discard(peer)
        self._wake()

    def kill(self, peer: str) -> None:
        """End a peer as SIGKILL would: every stream resets, and every later call on its transport fails."""
        self.transports.pop(peer).die()

    def link(self, a: str, b: str) -> Link:
        """Return the link from `a` to `b`."""
        return self._links.get((a, b), self._default)

    def delivers(self, a: str, b: str) -> bool:
        """Tell whether bytes move from `a` to `b` now."""
        return not self.is_cut_off(a, b) and b not in self._frozen

    def is_cut_off(self, a: str, b: str) -> bool:
        """Tell whether `a` cannot even connect to `b`: a partition separates them, or `a` itself is frozen."""
        cut = a in self._groups and b in self._groups and self._groups[a] != self._groups[b]
        return cut or a in self._frozen

    def is_lost(self, a: str, b: str) -> bool:
        """Draw whether this attempt fails by chance."""
        return self.random.random() < self.link(a, b).loss

    def arrival(self, a: str, b: str, size: int) -> float:
        """Return when `size` bytes sent now arrive, and occupy the link and the uplink until they have left."""
        link = self.link(a, b)
        done = now = anyio.current_time()
        for hop, bandwidth in (((a, None), self._uplinks.get(a)), ((a, b), link.bandwidth)):
            if bandwidth is not None:
                self._busy[hop] = max(self._busy.get(hop, now), now) + size / bandwidth
                done = max(done, self._busy[hop])
        return done + link.delay

    def _wake(self) -> None:
        for transport in self.transports.values():
            transport.wake()


class MemoryTransport:
    """One peer's `p2p.transport.Transport` in a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self._network = network
        self._peer_id = peer_id
        self._alive = True
        self._tasks: TaskGroup | None = None
        self._connected: dict[str, None] = {}
        self._streams: dict[_MemoryStream, None] = {}
        self._handlers: dict[str, StreamHandler] = {}

    @property
    def peer_id(self) -> str:
        """See `Transport`."""
        return self._peer_id

    async def run(self, listening: Callable[[], None]) -> None:
        """See `Transport`."""
        try:
            async with anyio.create_task_group() as self._tasks:
                listening()
                await anyio.sleep_forever()
        finally:
            self._tasks = None
            if self._network.transports.get(self._peer_id) is self:
                self._network.kill(self._peer_id)

    def addresses(self) -> list[str]:
        """See `Transport`."""
        return [self._network.addresses.address(self._peer_id)]

    def peers(self) -> list[str]:
        """See `Transport`."""
        return list(self._connected)

    def routes(self) -> dict[str, Route]:
        """See `Transport`."""
        return dict.fromkeys(self._connected, "direct")

    async def dial(self, addresses: Sequence[str]) -> str:
        """See `Transport`."""
        for address in addresses:
            peer = peer_of(address)
            if peer in self._connected:
                return peer
            other = await self._reach(peer, round_trips=1) if self._network.addresses.is_current(address) else None
            if other is not None and other is not self:
                self._connected[peer] = other._connected[self._peer_id] = None
                return peer
        raise Unreachable(f"no peer answers at {', '.join(addresses)}" if addresses else "no address to dial")

    def remote(self, peer: str) -> str | None:
        """See `Transport`. The address has no IP address, so the peer's route counts as direct."""
        return f"/memory/{peer}" if peer in self.peers() else None

    async def reserve(self, addresses: Sequence[str]) -> None:
        """See `Transport`. This network has no relays."""
        raise Unreachable("there are no relays in the in-memory network")

    async def release(self, relay: str) -> None:
        """See `Transport`."""

    def origin(self, peer: str) -> Origin:
        """See `Transport`."""
        origin = self._network.origins.get(peer, Origin(peer, peer))
        return origin._replace(is_known=origin.party in self._network.parties.known)

    def count_relayed_bytes(self) -> int:
        """See `Transport`."""
        return 0

    def refusals(self) -> dict[str, int]:
        """See `Transport`."""
        return {}

    async def open(self, peer: str, protocol: str) -> Stream:
        """See `Transport`."""
        # Its protocol travels with the first bytes (p2p/libp2p/proposal.py): no round trip.
        other = await self._reach(peer, round_trips=0) if peer in self._connected else None
        if other is None or other._tasks is None or not self._alive:
            raise Unreachable(f"{peer} is not connected")
        handler = other._handlers.get(protocol)
        if handler is None:
            raise Unreachable(f"{peer} does not speak {protocol}")
        near = _MemoryStream(self._network, self, other)
        far = _MemoryStream(self._network, other, self)
        near.other, far.other = far, near
        other._tasks.start_soon(other._accept, handler, far)
        return near

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """See `Transport`."""
        self._handlers[protocol] = handler

    async def drop(self, peer: str) -> None:
        """See `Transport`."""
        self._connected.pop(peer, None)
        other = self._network.transports.get(peer)
        if other is not None:
            other._connected.pop(self._peer_id, None)
        for stream in [s for s in self._streams if s.peer == peer]:
            stream.abort()

    def die(self) -> None:
        """Reset every stream, as the operating system does for a killed process."""
        self._alive = False
        self.disconnect_all()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def disconnect_all(self) -> None:
        """End every connection."""
        for stream in list(self._streams):
            stream.abort()
        for peer in self._connected:
            if peer in self._network.transports:
                self._network.transports[peer]._connected.pop(self._peer_id, None)
        self._connected.clear()

    def wake(self) -> None:
        """Let every waiting stream check again."""
        for stream in list(self._streams):
            stream.wake()

    async def _reach(self, peer: str, *, round_trips: int) -> "MemoryTransport | None":
        """Return the other side, after `round_trips`; None for a peer that does not listen, or a lost attempt."""
        network = self._network
        if not self._alive or network.is_lost(self._peer_id, peer):
            return None
        if network.is_cut_off(self._peer_id, peer):
            await anyio.sleep(network.patience)
            return None
        await anyio.sleep(2 * round_trips * network.link(self._peer_id, peer).delay)
        other = network.transports.get(peer)
        return other if other is not None and other._tasks is not None else None

    async def _accept(self, handler: StreamHandler, stream: "_MemoryStream") -> None:
        await guard_handler(handler)(stream)
        await guard_handler(stream.linger)()


class _MemoryStream:
    """One side of a stream; frames on their way to it are in its inbox."""

    other: "_MemoryStream"

    def __init__(self, network: MemoryNetwork, owner: MemoryTransport, far: MemoryTransport) -> None:
        self._network = network
        self._owner = owner
        self._far = far
        self._inbox: deque[tuple[float, bytes | None]] = deque()
        self._under_way = 0
        self._dead = False
        self._finished = False
        self._patience = network.patience
        self._changed = anyio.Event()
        owner._streams[self] = None

    @property
    def peer(self) -> str:
        return self._far.peer_id

    def hurry(self) -> None:
        """See `Stream`. A frame arrives whole here, so a wait for it lasts as long as one without a byte."""
        self._patience = min(self._network.patience, RATE_SECONDS)

    async def send(self, *pieces: bytes | memoryview) -> None:
        await self._until_room(sum(map(len, pieces)))
        self._post(b"".join(pieces))

    async def receive(self, limit: int) -> bytes | None:
        with self._watchdog():
            while True:
                self._check()
                wait = self._until_next()
                if wait is not None and wait <= 0:
                    return self._take(limit)
                with anyio.move_on_after(wait):
                    await self._changed.wait()

    async def finish(self) -> None:
        if not self._dead and not self._finished:
            self._finished = True
            self._post(None)

    async def reset(self) -> None:
        self.abort()

    async def linger(self) -> None:
        """Finish, and discard further frames until the other side has finished too."""
        await self.finish()
        while not self._dead and await self.receive(sys.maxsize) is not None:
            pass
        self._owner._streams.pop(self, None)

    def abort(self) -> None:
        """Reset both sides at once."""
        for side in (self, self.other):
            side._dead = True
            side._owner._streams.pop(side, None)
            side.wake()

    def wake(self) -> None:
        """Let waiting calls check again."""
        self._changed.set()
        self._changed = anyio.Event()

    def _until_next(self) -> float | None:
        """Return the seconds until the next frame arrives; None if none is on its way, or none can arrive now."""
        if not self._inbox or not self._network.delivers(self.peer, self._owner.peer_id):
            return None
        return self._inbox[0][0] - anyio.current_time()

    def _take(self, limit: int) -> bytes | None:
        frame = self._inbox[0][1]
        if frame is None:
            return None
        self._inbox.popleft()
        self._under_way -= len(frame)
        self.other.wake()
        if len(frame) > limit:
            raise TooLong(f"{self.peer} sent a frame of {len(frame)} bytes, the limit is {limit}")
        return frame

    def _post(self, frame: bytes | None) -> None:
        size = len(frame or b"")
        when = self._network.arrival(self._owner.peer_id, self.peer, size)
        if self.other._inbox:
            when = max(when, self.other._inbox[-1][0])
        self.other._inbox.append((when, frame))
        self.other._under_way += size
        self.other.wake()

    async def _until_room(self, size: int) -> None:
        with self._watchdog():
            while True:
                self._check()
                if self._finished:
                    raise LocalNetworkFault("a frame was sent after the stream's finish")
                if not self.other._under_way or self.other._under_way + size <= WINDOW_BYTES:
                    return
                await self._changed.wait()

    def _check(self) -> None:
        if self._dead:
            raise Unreachable(f"the stream with {self.peer} was reset")

    @contextmanager
    def _watchdog(self) -> Iterator[None]:
        with anyio.move_on_after(self._patience) as scope:
            yield
        if scope.cancelled_caught:
            self.abort()
            raise Unreachable(f"{self.peer} made no progress for {self._patience:g} s")
