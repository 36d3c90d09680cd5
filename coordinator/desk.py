"""What nodes come to: the books, and the documents that a hello is answered with. One of each a coordinator.

Rules
1. What a node brings wakes whoever waits for it.
2. Where this process was stopped, its machine suspended, or the wall clock set forward, open leases get that time back
   before the first answer after it, as after a restart. An event loop that was only busy gives no lease more time:
   `ran` tells the two apart (runtime/witness.py). Where the wall clock was set back, leases from ahead begin anew.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from coordinator.accounts.standing import Accounts
from coordinator.books import Books
from coordinator.history import History
from coordinator.publisher import Publisher
from coordinator.roster import Roster
from coordinator.setup import Run
from p2p.limits.origin import Origin
from p2p.messages import Acknowledgement, LeaseAsk, Refusal, SubmitAnswer, VerdictsAsk
from p2p.messages import Verdicts as VerdictsAnswer
from runtime.witness import Witness

STOPPED = 5_000
"""Milliseconds of the wall clock, less those in which this process ran, from which on it was not there."""

log = structlog.get_logger("coordinator")


@dataclass
class Desk:
    """The books as nodes reach them. `ran`: seconds that this process ran, counted from any moment."""

    books: Books
    history: History
    arrived: asyncio.Event
    ran: Callable[[], float] = field(default_factory=Witness)
    _here: tuple[int, float] | None = None

    def here(self, now: int) -> None:
        """Give open leases back the time of an absence (rule 2). Call at each tick, and before an answer."""
        ran = self.ran()
        if self._here is not None:
            before, had_run = self._here
            if now - before - 1000 * (ran - had_run) > STOPPED:
                away = self.books.leases.resume(now)
                log.warning("process was suspended; open leases extended", away_seconds=away / 1000)
            elif now < before - STOPPED:
                self.books.leases.resume(now)
                log.warning("the clock was set back; leases from ahead begin anew", seconds=(before - now) / 1000)
        self._here = now, ran

    @property
    def roster(self) -> Roster:
        return self.books.roster

    @property
    def accounts(self) -> Accounts:
        return self.books.accounts

    def lease(self, node: bytes, ask: LeaseAsk, now: int, origin: Origin) -> bytes | Refusal:
        self.here(now)
        self.history.first_asked(ask.version, now)
        return self.books.lease(node, ask, now, origin)

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
