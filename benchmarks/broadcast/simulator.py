"""A broadcast in simulated time: the product's planner, chunk picker and request queues, without bytes or sockets.

The product's own code decides the parents (p2p/plan/repair.py), the next requests (p2p/swarm/picker.py), the chunks
that a holder has yet to send on a stream (p2p/swarm/request_queue.py), and the order at an uplink
(p2p/limits/bandwidth.py). Timeouts are the product's too. The rest is a model:

1. An uplink sends one chunk at a time, a downlink receives one at a time; messages between peers cost latency alone.
   Peers lie on a disk with the source at its middle; latency grows with distance. The planner knows each peer's
   latency to the source, and its uplink with an error.
2. Opening a stream costs one round trip, or two to a peer without a connection. The streams of a killed peer are reset
   one latency later, those of a frozen peer after `WATCHDOG` seconds. The connection of either peer to the coordinator
   ends with them.
3. The coordinator notices the end of a connection within `SEEN` seconds, and informs the peers whose parents changed. A
   peer that loses a parent dials it in vain, and requests a plan `LOOK` seconds later. Every peer that is not complete
   requests one every `ASK_EVERY` seconds.
4. Each peer knows `NEIGHBOURS` random others, its parents and children, and the source. All peers are honest.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random
from typing import Final

from benchmarks.broadcast.simulated_space import Place
from benchmarks.plays.simulated_clock import SimulatedClock
from echo2.coordinator.publishing.broadcast_planner import EXCLUDED_PARENT_SECONDS, PLAN_SETTLE_SECONDS
from echo2.coordinator.publishing.broadcast_planner import NODE_POLL_SECONDS as SEEN
from echo2.node.links.neighbours import NEIGHBOURS
from echo2.node.links.plan_client import ASK_EVERY, PEER_POLL_SECONDS
from echo2.p2p.limits.bandwidth import FairQueue, bandwidth
from echo2.p2p.plan.repair import Planner
from echo2.p2p.plan.trees import LinkCapacity, PayloadSize, Plan
from echo2.p2p.swarm import download
from echo2.p2p.swarm.picker import ChunkPicker
from echo2.p2p.swarm.request_queue import RequestQueue

WATCHDOG: Final = 20.0
"""Seconds until the stream of a frozen peer is reset."""
SOURCE: Final = "source"


class Stream:
    """A stream from one holder to one downloader, `getter`. `telling`: an announcement of chunks is scheduled."""

    __slots__ = ("getter", "holder", "latency", "open", "orders", "telling")

    def __init__(self, holder: "Peer", getter: "Peer") -> None:
        self.holder, self.getter = holder, getter
        self.latency = holder.place.distance(getter.place)
        self.orders, self.open, self.telling = RequestQueue(), True, False


class Peer:
    """A peer as holder and as downloader. `have`: a bitmap of its chunks. `alive` and not `awake`: it is frozen;
    neither: it was killed. `since`: its arrival; `joined`, `done`: start and end of its fetch."""

    def __init__(self, world: "World", name: str, place: Place, *, source: bool = False) -> None:
        self.world, self.clock, self.name, self.place = world, world.clock, name, place
        self.have = (1 << world.chunks) - 1 if source else 0
        self.alive = self.awake = True
        self.since = 0.0
        self.joined: float | None = 0.0 if source else None
        self.done: float | None = 0.0 if source else None
        self.parents: tuple[str, ...] = ()
        self.known: dict[str, None] = {}
        self.swarm: ChunkPicker | None = None
        self._turns: FairQueue[Stream] = FairQueue(bandwidth(None))
        self._sending = False
        self._received_until = 0.0
        self._listeners: dict[Stream, None] = {}
        self._early: list[Stream] = []
        self._streams: dict[str, Stream] = {}

    # As a downloader.

    def start(self) -> None:
        """Start the fetch, as when the Head has arrived."""
        if not self.awake:
            return
        self.joined = self.clock.now
        seed = self.world.random.getrandbits(32)
        self.swarm = ChunkPicker(self.world.chunks, self.world.load.chunk, seed=seed, fallback=SOURCE)
        self.swarm.follow(self.parents, self.clock.now)
        self._look()
        early, self._early = self._early, []
        for stream in early:
            self._begin(stream)
        self.clock.after(self.world.random.random() * download.POLL_INTERVAL, self._tick)

    def follow(self, parents: Sequence[str]) -> None:
        """Take over the parents that the coordinator's plan gives."""
        if not self.awake or tuple(parents) == self.parents:
            return
        self.parents = tuple(parents)
        for parent in self.parents:
            self.known[parent] = self.world.peers[parent].known[self.name] = None
        if self.swarm is not None and self.done is None:
            self.swarm.follow(parents, self.clock.now)
            self._pump()
            self._look()

    def _tick(self) -> None:
        if self.awake and self.done is None:
            self._pump()
            self._look()
            self.clock.after(download.POLL_INTERVAL, self._tick)

    def _look(self) -> None:
        assert self.swarm is not None
        for name in self.known:
            wanted = not self.parents or name in self.parents or self.swarm.needs_more_peers
            if wanted and name not in self._streams and self.world.reachable(name):
                self.swarm.stream_opened(name, self.clock.now)
                stream = self._streams[name] = Stream(self.world.peers[name], self)
                self.clock.after(
                    (3 if name in self.world.count_failure(self) else 5) * stream.latency, stream.holder._asked, stream
                )

    def _pump(self) -> None:
        assert self.swarm is not None
        needy = self.swarm.needs_more_peers
        asks = self.swarm.next_requests(self.clock.now)
        for ask in self.swarm.take_cancellations():
            self._batch(ask.peer, ask.index, Peer._cancel)
        self._flush()
        for ask in asks:
            self._batch(ask.peer, ask.index, Peer._want)
        self._flush()
        if self.swarm.needs_more_peers and not needy:
            self._look()

    def _batch(self, peer: str, index: int, do: Callable[..., None]) -> None:
        self.world.batch.setdefault((peer, do), []).append(index)

    def _flush(self) -> None:
        for (peer, do), indices in self.world.batch.items():
            stream = self._streams[peer]
            self.clock.after(stream.latency, do, stream.holder, stream, indices)
        self.world.batch.clear()

    def _told(self, stream: Stream, indices: int) -> None:
        if self._hears(stream):
            assert self.swarm is not None
            self.swarm.on_have(stream.holder.name, indices, self.clock.now)
            self._pump()

    def _waits(self, stream: Stream) -> None:
        if self._hears(stream):
            assert self.swarm is not None
            self.swarm.on_no_chunks(stream.holder.name)
            self._pump()

    def _arriving(self, stream: Stream, index: int) -> None:
        """Receive a chunk whose last byte has left the holder's uplink: the downlink takes one at a time."""
        first = self.clock.now + stream.latency
        self._received_until = max(first, self._received_until + self.world.size(index) / self.place.down)
        self.clock.after(self._received_until - self.clock.now, self._arrived, stream, index)

    def _arrived(self, stream: Stream, index: int) -> None:
        if not self._hears(stream):
            return
        swarm = self.swarm
        assert swarm is not None
        assert swarm.is_requested(stream.holder.name, index)
        swarm.on_chunk(stream.holder.name, index, self.clock.now)
        self.world.delivered += 1
        bit = 1 << index
        if self.have & bit:
            self.world.surplus += 1
        else:
            self.have |= bit
            for listener in self._listeners:
                self._news(listener, index)
        if swarm.complete:
            self._complete()
        else:
            self._pump()

    def _complete(self) -> None:
        self.done = self.clock.now
        self.world.waiting -= 1
        for stream in self._streams.values():
            stream.open = False
            self.clock.after(stream.latency, stream.holder._left, stream)
        self._streams.clear()

    def _hears(self, stream: Stream) -> bool:
        return stream.open and self.awake and self.done is None

    def _lost(self, stream: Stream) -> None:
        """Drop a stream that was reset."""
        name = stream.holder.name
        self.known.pop(name, None)
        if self._hears(stream) and self._streams.get(name) is stream:
            assert self.swarm is not None
            stream.open = False
            del self._streams[name]
            self.swarm.on_leave(name)
            if name in self.parents:
                self.clock.after(PEER_POLL_SECONDS, self.world.ask, self, name)
            self._pump()

    # As a holder.

    def favour(self, children: Collection[str]) -> None:
        """Prioritise the children that the plan gives."""
        self._turns.prioritise(children)

    def _asked(self, stream: Stream) -> None:
        if not self.awake:
            self.clock.after(WATCHDOG if self.alive else 0.0, stream.getter._lost, stream)
        else:
            if self.joined is None:
                self._early.append(stream)
                self.clock.after(stream.latency, stream.getter._waits, stream)
            else:
                self._begin(stream)

    def _begin(self, stream: Stream) -> None:
        self._listeners[stream] = None
        stream.orders.start(self.have, self.world.chunks)
        self.clock.after(stream.latency, stream.getter._told, stream, self.have)
        self._offer(stream)

    def _want(self, stream: Stream, indices: list[int]) -> None:
        if self.awake and stream.open:
            stream.orders.request(indices, self.have)
            self._offer(stream)

    def _cancel(self, stream: Stream, indices: list[int]) -> None:
        stream.orders.cancel(indices)

    def _left(self, stream: Stream) -> None:
        self._listeners.pop(stream, None)
        self._turns.dequeue(stream)

    def _news(self, stream: Stream, index: int) -> None:
        stream.orders.on_chunk(index, self.clock.now)
        if not stream.telling:
            self._tell(stream)
        self._offer(stream)

    def _tell(self, stream: Stream) -> None:
        """Announce new chunks if that is due; else schedule the announcement."""
        stream.telling = False
        if not self.awake or not stream.open:
            return
        quiet = stream.orders.announce_delay(self.clock.now)
        if quiet > 0:
            stream.telling = True
            self.clock.after(quiet, self._tell, stream)
        elif news := stream.orders.take_announcements(self.clock.now):
            self.clock.after(stream.latency, stream.getter._told, stream, sum(1 << index for index in news))

    def _offer(self, stream: Stream) -> None:
        if stream.orders.next_chunk() is not None:
            self._turns.enqueue(stream, stream.getter.name, self.world.load.chunk)
            if not self._sending:
                self._send()

    def _send(self) -> None:
        """Send the next chunk: the uplink is free."""
        while (stream := self._turns.head()) is not None:
            self._turns.consume(stream, self.clock.now)
            index = stream.orders.next_chunk()
            if index is not None and stream.open:
                stream.orders.mark_sent(index)
                self._sending = True
                self.clock.after(self.world.size(index) / self.place.up, self._sent, stream, index)
                return

    def _sent(self, stream: Stream, index: int) -> None:
        self._sending = False
        if not self.awake:
            return
        self.world.from_source += self.name == SOURCE
        stream.getter._arriving(stream, index)
        if stream.open:
            self._offer(stream)
        if not self._sending:
            self._send()

    def end(self, frozen: bool) -> None:
        """Kill the peer, or freeze it."""
        if self.awake:
            self.awake, self.alive = False, frozen
            if self.done is None:
                self.world.waiting -= 1
            seconds = WATCHDOG if frozen else 0.0
            self.clock.after(seconds, self.world.gone, self)
            for stream in (*self._listeners, *self._early):
                self.clock.after(seconds + stream.latency, stream.getter._lost, stream)
            for stream in self._streams.values():
                self.clock.after(seconds + stream.latency, stream.holder._left, stream)


class World:
    """One source, its peers, and the coordinator's planner. `waiting`: number of peers that are present and incomplete.
    `coming`: number of peers still to join. `delivered`: chunks that arrived, `surplus` of them duplicates.
    `from_source`: chunks that the source sent. `first`: the first plan."""

    def __init__(
        self, uplink: float, places: Sequence[Place], load: PayloadSize, seed: int, *, planned: bool = True
    ) -> None:
        self.clock, self.random = SimulatedClock(), Random(seed)
        self.load, self.chunks = load, -(-load.length // load.chunk)
        self.batch: dict[tuple[str, Callable[..., None]], list[int]] = {}
        self.delivered = self.surplus = self.from_source = self.coming = 0
        self._planner, self._planned = Planner(SOURCE, seed), planned
        self._uplink, self._made_at, self._due = uplink, -math.inf, False
        self._told: dict[str, tuple[str, ...]] = {}
        self._apart: dict[str, dict[str, float]] = {}
        self.middle = Place(uplink, math.inf, uplink, 0.0, 0.0)
        self.peers = {SOURCE: Peer(self, SOURCE, self.middle, source=True)}
        self._here: dict[str, LinkCapacity] = {}
        self._met: dict[str, set[str]] = {}
        self.waiting = 0
        for number, place in enumerate(places):
            self._add(f"p{number}", place)
        self._make()
        for peer in self.peers.values():
            if peer.name != SOURCE:
                self.waiting += 1
                self._told[peer.name] = self.plan.parents.get(peer.name, ())
                peer.follow(self._told[peer.name])
                self._met[peer.name] = set(peer.known)
                self.clock.after(peer.place.distance(self.middle), peer.start)
                self.clock.after(self.random.random() * ASK_EVERY, self._again, peer)
        self.first = self.plan

    @property
    def plan(self) -> Plan:
        return self._planner.plan

    def size(self, index: int) -> int:
        """Return the bytes of a chunk."""
        return min(self.load.chunk, self.load.length - index * self.load.chunk)

    def count_failure(self, peer: Peer) -> Iterable[str]:
        """Return the peers with which `peer` was connected before the broadcast."""
        return self._met.get(peer.name, ())

    def reachable(self, name: str) -> bool:
        """Tell whether a stream to this peer can be requested. To a frozen peer it can, until its connections end."""
        return name == SOURCE or name in self._here

    def come(self, name: str, place: Place) -> None:
        """Let a peer join while the broadcast runs."""
        peer = self._add(name, place)
        peer.since = self.clock.now
        self.coming, self.waiting = self.coming - 1, self.waiting + 1
        self.clock.after(2 * place.distance(self.middle), peer.start)
        self.clock.after(ASK_EVERY, self._again, peer)
        self._settle()

    def ask(self, peer: Peer, failed: str | None = None) -> None:
        """Request a plan for `peer` in which `failed` is no parent."""
        if not peer.awake or (failed is not None and failed not in peer.parents):
            return
        if failed is not None:
            self._apart.setdefault(peer.name, {})[failed] = self.clock.now + EXCLUDED_PARENT_SECONDS
        self._settle()

    def gone(self, peer: Peer) -> None:
        """Remove a peer whose connection to the coordinator ended."""
        self._here.pop(peer.name, None)
        self._settle()

    def _add(self, name: str, place: Place) -> Peer:
        peer = self.peers[name] = Peer(self, name, place)
        others = list(self.peers) if len(self.peers) <= NEIGHBOURS else self.random.sample(list(self.peers), NEIGHBOURS)
        for other in {SOURCE, *others} - {name}:
            peer.known[other] = self.peers[other].known[name] = None
        self._here[name] = LinkCapacity(place.believed, place.down, place.distance(self.middle))
        return peer

    def _again(self, peer: Peer) -> None:
        if peer.awake and peer.done is None:
            self.ask(peer)
            self.clock.after(ASK_EVERY, self._again, peer)

    def _settle(self) -> None:
        """Schedule a rebuild of the plan, at most one per `SETTLE` seconds; it informs the peers whose parents
        changed."""
        if not self._due:
            self._due = True
            self.clock.after(max(SEEN, self._made_at + PLAN_SETTLE_SECONDS - self.clock.now), self._tell)

    def _tell(self) -> None:
        self._due = False
        self._make()
        for name in self._here:
            peer, parents = self.peers[name], self.plan.parents.get(name, ())
            if self._told.get(name) != parents:
                self._told[name] = parents
                self.clock.after(peer.place.distance(self.middle), peer.follow, parents)

    def _make(self) -> None:
        now, self._made_at = self.clock.now, self.clock.now
        if self._planned:
            apart = {
                name: {parent for parent, until in until_of.items() if until > now}
                for name, until_of in self._apart.items()
            }
            self._planner.update(self._uplink, self._here, self.load, apart)
            self.peers[SOURCE].favour({peer for peer, parents in self.plan.parents.items() if SOURCE in parents})
