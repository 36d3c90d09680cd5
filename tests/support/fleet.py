"""Nodes, a scorer and a learner around real books, on a fake clock: what a run makes of honest and hostile nodes.

Nodes come over connections of their own where the books ask for an origin (those of 439044d do not)."""

import heapq
import inspect
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from coordinator.rollouts.group_service import GroupService
from p2p.wire_types import encode
from protocol.leases import Lease
from protocol.requests import Refusal
from tests.support.group_world import World, group, opened

TAKES_ORIGIN = "origin" in inspect.signature(GroupService.lease).parameters
TICK = 250
"""Milliseconds between two looks of scorer and learner."""


def key(kind: str, number: int = 0) -> bytes:
    return f"{kind} {number}".encode().ljust(32, b".")


def come_from(connection: str, party: str | None = None) -> tuple[Any, ...]:
    """The arguments of an ask that say where it came from."""
    if not TAKES_ORIGIN:
        return ()
    from p2p.limits.origin import Origin  # not there in 439044d

    return (Origin(connection, connection if party is None else party),)


class Fleet:
    """`step_ms`: how long the learner needs for a step. `steps`: so far. `ends`: codes of decided groups and of refused
    asks; "late" groups among the first."""

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
        """All that were given, in order."""
        return list(self._leases.values())

    def quiet(self, node: bytes) -> None:
        """Let a choosy node ask no more."""
        self._quiet.add(node)

    def after(self, milliseconds: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.world.now + milliseconds, next(self._order), action))

    def run(self, milliseconds: int) -> int:
        """Let time pass; the learner's steps meanwhile."""
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
        if not self._computing and (batch := world.group_service.draw()) is not None:
            self.learned += [self._leases[one.id] for one in batch]
            self._computing, self._busy_until = True, world.now + self._step_ms
        self.after(TICK, self._tick)

    def ask(self, node: bytes, origin: tuple[Any, ...]) -> Lease | Refusal:
        world = self.world
        answer = world.group_service.lease(node, world.ask(self.steps), world.now, *origin)
        if isinstance(answer, Refusal):
            self.asks[answer.code] += 1
            return answer
        self.asks[""] += 1
        lease: Lease = opened("lease", answer, Lease)
        self._leases[lease.id] = lease
        return lease

    def hand_in(self, lease: Lease) -> None:
        answer = self.world.group_service.submissions.submit(lease.node, encode(group(lease)), self.world.now)
        assert not isinstance(answer, Refusal), answer
        if answer.received is None:
            self.ends["late"] += 1

    def honest(self, node: bytes, seconds: float, spread: float = 0.25, connection: str | None = None) -> None:
        """A node that works as long as the run goes on. `seconds`: of a group, give or take the share `spread`."""
        origin = come_from(connection or node.decode())

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

    def crowd(self, keys: int, every: int, connection: str = "crowd") -> None:
        """Keys on one connection that ask in turn, one each `every` milliseconds, and return nothing."""
        names = itertools.cycle(key("crowd", number) for number in range(keys))
        origin = come_from(connection)

        def ask() -> None:
            self.ask(next(names), origin)
            self.after(every, ask)

        self.after(0, ask)

    def last_second(self, node: bytes) -> None:
        """A node that hands in honest groups half a second before its lease ends, one after the other."""
        origin = come_from(node.decode())

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
        """A node that asks each `every` milliseconds, returns what it likes at once, and drops the rest."""
        origin = come_from(connection or node.decode())

        def ask() -> None:
            if node in self._quiet:
                return
            answer = self.ask(node, origin)
            if isinstance(answer, Lease) and not drops(answer):
                self.hand_in(answer)
            self.after(every, ask)

        self.after(0, ask)

    def strangers(self, every: int, parties: int, drops: Callable[[Lease], bool]) -> None:
        """Keys that were never used before, a new one each `every` milliseconds over a connection of its own. Each asks
        until it gets a lease, a few times at most, returns what it likes after 4 s, and gives the rest back at once."""
        numbers = itertools.count()

        def come() -> None:
            number = next(numbers)
            ask(key("stranger", number), come_from(f"stranger {number}", f"party {number % parties}"), 8)
            self.after(every, come)

        def ask(node: bytes, origin: tuple[Any, ...], tries: int) -> None:
            answer = self.ask(node, origin)
            if isinstance(answer, Refusal):
                if tries:
                    self.after(answer.retry_after or 1_000, lambda: ask(node, origin, tries - 1))
            elif drops(answer):
                self.world.group_service.submissions.submit(node, encode(group(answer, rollouts=[])), self.world.now)
            else:
                self.after(4_000, lambda: self.hand_in(answer))

        self.after(0, come)
