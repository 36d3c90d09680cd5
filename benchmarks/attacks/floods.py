"""Attackers, each with one method to stop a run or to choose what it learns.

Rules
1. An attacker has `keys` keys over `lines` connections from `parties` subnets. It sends `rate` lease requests per
   second in all, each for the key whose last request is oldest, under the newest version. It ignores refusals. It opens
   connections until one does not stand within `STANDS` seconds, and shares its keys among those that do.
2. Some methods need honest work first: a key with accepted work, a known key, may hold more leases.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from benchmarks.attacks.flood_keys import Connection, Key
from benchmarks.attacks.groups import made_up, nothing
from benchmarks.attacks.place import AttackPlace
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal

RATE: Final = 8.0
"""Lease requests per second of an attacker."""
STANDS: Final = 5.0
KEYS_AT_ONCE: Final = 8
SETTLED: Final = 180.0
"""Seconds after which a prompt without an accepted group counts as lost."""


@dataclass
class Crowd(ABC):
    """An attacker whose keys request leases in turn (rule 1). A subclass's `use` is its method."""

    keys: int
    lines: int
    parties: int
    rate: float = RATE
    _ready: list[Key] = field(default_factory=list, init=False)

    async def prepare(self, world: AttackPlace) -> None:
        """Do what has to be done before the attack: by default nothing."""
        return

    async def run(self, world: AttackPlace) -> None:
        """Request leases until cancelled."""
        waiting = deque(await self._keys_once(world))
        greeted = {key.number for key in waiting if key.given}
        while True:
            key = waiting.popleft()
            waiting.append(key)
            world.tasks.start_soon(self._ask_once, world, key, key.number in greeted)
            greeted.add(key.number)
            await anyio.sleep(1 / self.rate)

    async def _keys_once(self, world: AttackPlace) -> list[Key]:
        """Return the keys, which the first call makes."""
        if not self._ready:
            connections = await self._connected(world)
            self._ready = [world.key(connections[number % len(connections)]) for number in range(self.keys)]
        return self._ready

    async def _connected(self, world: AttackPlace) -> list[Connection]:
        """Return at least one connection, at most `lines` (rule 1)."""
        connections = [await world.connect("stranger 0")]
        for number in range(1, self.lines):
            with anyio.move_on_after(STANDS) as patience:
                connections.append(await world.connect(f"stranger {number % self.parties}"))
            if patience.cancelled_caught:
                break
        return connections

    async def _ask_once(self, world: AttackPlace, key: Key, greeted: bool) -> None:
        if not greeted:
            await key.hello()
        answer = await key.lease(world.terms())
        if not isinstance(answer, Refusal):
            await self.use(world, key, answer)

    @abstractmethod
    async def use(self, world: AttackPlace, key: Key, lease: Lease) -> None:
        """Use a lease by this method."""

    def said(self, world: AttackPlace) -> dict[str, float]:
        """Return the number of leases given to all keys, and of their groups decided: in all, and the most of one
        key."""
        taken = [_decided(world, key) for key in world.attackers]
        return {
            "leases": sum(key.given for key in world.attackers),
            "decided": sum(taken),
            "of one key": max(taken, default=0),
        }


class Hoarders(Crowd):
    """Attackers that take all leases they get, and return nothing."""

    async def use(self, world: AttackPlace, key: Key, lease: Lease) -> None:
        return None


@dataclass
class FormerWorkers(Hoarders):
    """Attackers whose keys have brought `groups` paid groups each before the attack. `seconds`: per honest group."""

    groups: int = 3
    seconds: float = 4.0

    async def prepare(self, world: AttackPlace) -> None:
        """Work honestly with all keys until each has its groups, with `KEYS_AT_ONCE` at a time: more of them would only
        wait for the room of new keys."""
        at_once = anyio.CapacityLimiter(KEYS_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for key in await self._keys_once(world):
                tasks.start_soon(self._work, world, key, at_once)

    async def _work(self, world: AttackPlace, key: Key, at_once: anyio.CapacityLimiter) -> None:
        async with at_once:
            await self._earn(world, key)

    async def _earn(self, world: AttackPlace, key: Key) -> None:
        await key.hello()
        while _accepted(world, key) < self.groups:
            lease = await world.lease(key)
            await anyio.sleep(self.seconds)
            await key.submit(await world.group(lease))
            while _decided(world, key) < key.taken:
                await anyio.sleep(1.0)
                await key.ask_verdicts()


class Forgers(Crowd):
    """Attackers that submit fabricated groups, without end and without delay."""

    async def use(self, world: AttackPlace, key: Key, lease: Lease) -> None:
        await key.submit(made_up(lease))


class Returners(Crowd):
    """Attackers that end each lease at once, by a group that is refused at receipt."""

    async def use(self, world: AttackPlace, key: Key, lease: Lease) -> None:
        await key.submit(nothing(lease))


@dataclass
class Turncoats(Crowd):
    """Attackers that work honestly until `groups` groups of a key were accepted, then take leases and return
    nothing."""

    groups: int = 3
    seconds: float = 4.0

    async def use(self, world: AttackPlace, key: Key, lease: Lease) -> None:
        if _accepted(world, key) < self.groups:
            await anyio.sleep(self.seconds)
            await key.submit(await world.group(lease))
        else:
            await self.turned(key, lease)

    async def turned(self, key: Key, lease: Lease) -> None:
        """Use a lease of a known key: by default, return nothing."""


class Sleepers(Turncoats):
    """Attackers that work honestly until `groups` groups of a key were accepted, then submit fabricated ones."""

    async def turned(self, key: Key, lease: Lease) -> None:
        await key.submit(made_up(lease))


@dataclass
class LastSecond(Crowd):
    """Attackers that submit honest groups when a lease has almost expired. A late group makes the key's next lease
    longer."""

    share: float = 0.99

    async def use(self, world: AttackPlace, key: Key, lease: Lease) -> None:
        await anyio.sleep(self.share * (lease.expires - world.now()) / 1000)
        await key.submit(await world.group(lease))


@dataclass
class Pickers(Crowd):
    """Attackers that work honestly, except that they drop each prompt of one class, so that the learner never sees it.

    `seconds`: per honest group. `back`: a dropped lease is ended at once; else it expires. `every`: the class is every
    prompt whose index is a multiple of it.
    """

    seconds: float = 6.0
    back: bool = False
    every: int = 10
    dropped: int = field(default=0, init=False)

    async def use(self, world: AttackPlace, key: Key, lease: Lease) -> None:
        if not self.unwanted(lease.index):
            await anyio.sleep(self.seconds * world.random.uniform(0.85, 1.15))
            await key.submit(await world.group(lease))
            return
        self.dropped += 1
        if self.back:
            await key.submit(nothing(lease))

    def unwanted(self, index: int) -> bool:
        """Tell whether a prompt is of the dropped class."""
        return index % self.every == 0

    def said(self, world: AttackPlace) -> dict[str, float]:
        return {"dropped": self.dropped, "learned": learned(world, self.unwanted, SETTLED), **super().said(world)}


def learned(world: AttackPlace, of_class: Callable[[int], bool], settled: float) -> float:
    """Return the share of a class's prompts whose groups were accepted as trainable, of those leased to an attacker
    more than `settled` seconds ago. A prompt that was leased again counts once."""
    since = world.now() - 1000 * settled
    old = {index for key in world.attackers for sent, index in key.prompts if sent < since and of_class(index)}
    rows = world.rows("SELECT l.document FROM leases l JOIN verdicts v ON v.lease = l.id WHERE v.trainable = 1")
    done = {decode(document, Lease).index for (document,) in rows}
    return len(old & done) / max(1, len(old))


def _decided(world: AttackPlace, key: Key) -> int:
    return int(world.value("SELECT count(*) FROM verdicts WHERE node = ?", key.public))


def _accepted(world: AttackPlace, key: Key) -> int:
    return int(world.value("SELECT count(*) FROM verdicts WHERE node = ? AND verdict = 'accepted'", key.public))
