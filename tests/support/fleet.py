"""Nodes, a scorer and a learner around a real group service, on a fake clock: honest and hostile nodes in one run."""

import functools
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable

from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.group_world import World, group, opened

TICK = 250
"""Milliseconds between two ticks of scorer and learner."""


def key(kind: str, number: int = 0) -> bytes:
    """Return a made-up public key."""
    return f"{kind} {number}".encode().ljust(32, b".")


def origin_of(connection: str, party: str | None = None) -> Origin:
    """Return the origin of a connection. `party`: None: the connection is a party of its own."""
    return Origin(connection, connection if party is None else party)


def request_lease(world: World, connection: str, node: bytes = b"", party: str | None = None) -> Lease | Refusal:
    """Request a lease of the learner's version over a connection. `node`: empty: a key of the connection's own."""
    assert world.group_service.progress is not None
    request = world.ask(world.group_service.progress.step)
    answer = world.group_service.lease(node or key(connection), request, world.now, origin_of(connection, party))
    return answer if isinstance(answer, Refusal) else opened("lease", answer, Lease)


class Fleet:
    """A run of simulated nodes.

    `step_ms`: duration of a learner's step. `steps`: made so far. `ends`: codes of decided groups, "late" included.
    `asks`: codes of refused lease requests; "": a lease was given."""

    def __init__(self, world: World, step_ms: int = 1_000) -> None:
        self.world = world
        self.steps = 0
        self.ends: Counter[str] = Counter()
        self.asks: Counter[str] = Counter()
        self.learned: list[Lease] = []
        self._leases: dict[bytes, Lease] = {}
        self._quiet = set[bytes]()
        self._step_ms, self._busy_until, self._computing = step_ms, 0, False
        self._random = random.Random(7)
        self._order = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.after(0, self._tick)

    @property
    def leases(self) -> list[Lease]:
        """All leases that were given, in order."""
        return list(self._leases.values())

    def quiet(self, node: bytes) -> None:
        """Stop the requests of a choosy or batching node; it also keeps its leases."""
        self._quiet.add(node)

    def after(self, milliseconds: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.world.now + milliseconds, next(self._order), action))

    def run(self, milliseconds: int) -> int:
        """Advance the clock; return the number of learner's steps meanwhile."""
        end, before = self.world.now + milliseconds, self.steps
        while self._events and self._events[0][0] <= end:
            self.world.now, _, action = heapq.heappop(self._events)
            action()
        self.world.now = end
        return self.steps - before

    def _tick(self) -> None:
        world = self.world
        if world.now % 1_000 < TICK:
            world.group_service.tick(world.now)
        for receipt in world.decide_all():
            self.ends[receipt.code] += 1
        if self._computing and world.now >= self._busy_until:
            self._computing = False
            self.steps += 1
            world.learner_at(self.steps)
        if not self._computing and (batch := world.group_service.draw(world.now)) is not None:
            self.learned += [self._leases[one.id] for one in batch]
            self._computing, self._busy_until = True, world.now + self._step_ms
        self.after(TICK, self._tick)

    def ask(self, node: bytes, origin: Origin, at_once: int = 1) -> Lease | Refusal:
        """Request a lease, and count the answer in `asks`. `at_once`: groups that the node says it can use."""
        world = self.world
        request = world.ask(self.steps, at_once=at_once)
        answer = world.group_service.lease(node, request, world.now, origin)
        if isinstance(answer, Refusal):
            self.asks[answer.code] += 1
            return answer
        self.asks[""] += 1
        lease: Lease = opened("lease", answer, Lease)
        self._leases[lease.id] = lease
        return lease

    def hand_in(self, lease: Lease) -> None:
        """Submit an honest group for a lease."""
        answer = self.world.group_service.submissions.submit(lease.node, encode(group(lease)), self.world.now)
        assert not isinstance(answer, Refusal), answer
        if not answer:
            self.ends["late"] += 1

    def honest(self, node: bytes, seconds: float, spread: float = 0.25, connection: str | None = None) -> None:
        """Add a node that works as long as the run goes on. `seconds`: per group, plus or minus the share `spread`."""
        origin = origin_of(connection or node.decode())

        def ask() -> None:
            answer = self.ask(node, origin)
            if isinstance(answer, Refusal):
                assert answer.retry_after is not None, answer
                self.after(int(answer.retry_after * self._random.uniform(1.0, 1.2)), ask)
                return
            self.after(int(1000 * seconds * self._random.uniform(1 - spread, 1 + spread)), lambda: done(answer))

        def done(lease: Lease) -> None:
            self.hand_in(lease)
            ask()

        self.after(self._random.randrange(1_000), ask)

    def batching(self, node: bytes, seconds: Callable[[int], float], at_once: int) -> None:
        """Add a node that takes up to `at_once` groups further together. `seconds`: the duration of a group that begins
        as one of so many."""
        origin, under_way = origin_of(node.decode()), [0]

        def ask() -> None:
            while under_way[0] < at_once:
                answer = self.ask(node, origin, at_once)
                if isinstance(answer, Refusal):
                    if not under_way[0]:
                        self.after(answer.retry_after or 1_000, ask)
                    return
                under_way[0] += 1
                lasts = 1000 * seconds(under_way[0]) * self._random.uniform(0.8, 1.2)
                self.after(int(lasts), functools.partial(done, answer))

        def done(lease: Lease) -> None:
            under_way[0] -= 1
            if node not in self._quiet:
                self.hand_in(lease)
                ask()

        self.after(0, ask)

    def keys_on_one_connection(self, keys: int, every: int, connection: str = "crowd") -> None:
        """Add keys on one connection that request leases in rotation, one per `every` ms, and submit nothing."""
        names = itertools.cycle(key("crowd", number) for number in range(keys))
        origin = origin_of(connection)

        def ask() -> None:
            self.ask(next(names), origin)
            self.after(every, ask)

        self.after(0, ask)

    def last_second(self, node: bytes) -> None:
        """Add a node that submits each honest group 0.5 s before its lease expires, one after the other."""
        origin = origin_of(node.decode())

        def ask() -> None:
            answer = self.ask(node, origin)
            if isinstance(answer, Refusal):
                self.after(answer.retry_after or 1_000, ask)
                return
            self.after(answer.expires - self.world.now - 500, lambda: done(answer))

        def done(lease: Lease) -> None:
            self.hand_in(lease)
            ask()

        self.after(0, ask)

    def choosy(self, node: bytes, every: int, drops: Callable[[Lease], bool], connection: str | None = None) -> None:
        """Add a node that requests a lease per `every` milliseconds, and submits a group at once unless
        `drops(lease)`."""
        origin = origin_of(connection or node.decode())

        def ask() -> None:
            if node in self._quiet:
                return
            answer = self.ask(node, origin)
            if isinstance(answer, Lease) and not drops(answer):
                self.hand_in(answer)
            self.after(every, ask)

        self.after(0, ask)

    def fresh_keys(self, every: int, parties: int, drops: Callable[[Lease], bool]) -> None:
        """Add a fresh key per `every` milliseconds, each over a connection of its own, of one of `parties` parties.

        A key requests a lease at most nine times. It submits a group after 4 s, or an empty one at once if
        `drops(lease)`."""
        numbers = itertools.count()

        def come() -> None:
            number = next(numbers)
            ask(key("stranger", number), origin_of(f"stranger {number}", f"party {number % parties}"), 8)
            self.after(every, come)

        def ask(node: bytes, origin: Origin, tries: int) -> None:
            answer = self.ask(node, origin)
            if isinstance(answer, Refusal):
                if tries:
                    self.after(answer.retry_after or 1_000, lambda: ask(node, origin, tries - 1))
            elif drops(answer):
                self.world.group_service.submissions.submit(node, encode(group(answer, rollouts=[])), self.world.now)
            else:
                self.after(4_000, lambda: self.hand_in(answer))

        self.after(0, come)
