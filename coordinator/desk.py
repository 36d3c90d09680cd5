"""What nodes come to: the books, and the documents that a hello is answered with. One of each a coordinator.

Rules
1. What a node brings wakes whoever waits for it.
2. This process may have been stopped, or its machine suspended: before the first answer after that, open leases get the
   time back, as after a restart.
"""

import asyncio
from dataclasses import dataclass

import structlog

from coordinator.books import Books
from coordinator.history import History
from coordinator.publisher import Publisher
from coordinator.roster import Roster
from coordinator.setup import Run
from p2p.messages import Acknowledgement, LeaseAsk, Refusal, SubmitAnswer, VerdictsAsk
from p2p.messages import Verdicts as VerdictsAnswer

STOPPED = 5_000
"""Milliseconds between two ticks from which on this process was not there."""

log = structlog.get_logger("coordinator")


@dataclass
class Desk:
    """The books as nodes reach them."""

    books: Books
    history: History
    arrived: asyncio.Event
    _here: int | None = None

    def here(self, now: int) -> None:
        """At each tick, and before an answer: rule 2."""
        if self._here is not None and now - self._here > STOPPED:
            log.warning("was stopped", away_seconds=self.books.leases.resume(now) / 1000)
        self._here = now

    @property
    def roster(self) -> Roster:
        return self.books.roster

    def lease(self, node: bytes, ask: LeaseAsk, now: int) -> bytes | Refusal:
        self.here(now)
        self.history.first_asked(ask.version, now)
        return self.books.lease(node, ask, now)

    def submit(self, node: bytes, data: bytes, now: int) -> SubmitAnswer | Refusal:
        self.here(now)
        answer = self.books.submit(node, data, now)
        self.arrived.set()
        return answer

    def verdicts(self, node: bytes, ask: VerdictsAsk) -> VerdictsAnswer:
        return self.books.verdicts(node, ask)

    def acknowledge(self, node: bytes, message: Acknowledgement, now: int) -> None:
        self.books.acknowledge(node, message, now)

    async def durable(self) -> None:
        await self.books.durable()


@dataclass
class Papers:
    """What a hello is answered with."""

    run: Run
    publisher: Publisher
    books: Books

    def roots(self) -> list[bytes]:
        return list(self.run.roots)

    def runspec(self) -> bytes:
        return self.run.runspec_sealed

    def head(self) -> bytes | None:
        return self.publisher.sealed_head

    def peers(self, now: int) -> list[bytes]:
        return [known.sealed for known in self.books.roster.records(now)]
