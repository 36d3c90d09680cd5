"""The environment of honest nodes and attackers: a coordinator that is simulated, or one over real connections."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Protocol

import anyio

from benchmarks.attacks.flood_keys import Connection, Key
from benchmarks.attacks.light_node import Terms
from echo2.protocol.leases import Lease, Submission
from echo2.protocol.requests import Refusal

LONGEST: Final = 60.0
"""Longest wait between two requests for a lease, in seconds."""


class Tasks(Protocol):
    """A task group of anyio, or a nursery of trio."""

    def start_soon(self, task: Any, *arguments: Any) -> Any: ...


class AttackPlace(ABC):
    """A coordinator with its nodes. `honest`, `attackers`: the keys made so far. `tasks`: the group in which the tasks
    of all keys run."""

    tasks: Tasks

    def __init__(self, seed: int, first: int) -> None:
        """`first`: the keys get the numbers after it. Equal numbers give equal keys."""
        self.random = random.Random(seed)
        self.honest: list[Key] = []
        self.attackers: list[Key] = []
        self._next = first

    @abstractmethod
    def now(self) -> int:
        """Return milliseconds since the Unix epoch."""

    @abstractmethod
    def terms(self) -> Terms:
        """Return the facts about the newest version."""

    @abstractmethod
    async def connect(self, party: str = "") -> Connection:
        """Make a new connection. `party`: its subnet; none: one of its own (p2p/limits/origin.py)."""

    @abstractmethod
    async def group(self, lease: Lease) -> Submission:
        """Return the group that an honest node hands in for a lease."""

    @abstractmethod
    def rows(self, query: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """Return the rows that a query gives in run.sqlite."""

    def value(self, query: str, *parameters: Any) -> Any:
        """Return the first value that a query gives in run.sqlite."""
        rows = self.rows(query, *parameters)
        return rows[0][0] if rows else None

    def key(self, connection: Connection) -> Key:
        """Make an attacker's key over a connection."""
        self.attackers.append(self._new_key(connection))
        return self.attackers[-1]

    async def lease(self, key: Key) -> Lease:
        """Request a lease until one is given. After a refusal the next request is sent when the refusal permits it, or
        when a new version comes, as node/rollouts/lease_check.py does."""
        while True:
            terms = self.terms()
            answer = await key.lease(terms)
            if not isinstance(answer, Refusal):
                return answer
            until = anyio.current_time() + min(LONGEST, (answer.retry_after or 60_000) / 1000)
            while anyio.current_time() < until and self.terms().version == terms.version:  # noqa: ASYNC110
                await anyio.sleep(min(0.5, max(0.001, until - anyio.current_time())))

    async def volunteer(self, seconds: float) -> None:
        """Work honestly until cancelled, on one group at a time. `seconds`: time per group."""
        key = self._new_key(await self.connect())
        self.honest.append(key)
        await key.hello()
        await self.prepared(key)
        while True:
            lease = await self.lease(key)
            await anyio.sleep(seconds * self.random.uniform(0.85, 1.15))
            await key.submit(await self.group(lease))

    async def prepared(self, key: Key) -> None:
        """Do what an honest key has to do before it asks for leases: by default nothing."""
        return

    def _new_key(self, connection: Connection) -> Key:
        self._next += 1
        return Key(connection, self.terms(), self._next, self.now)
