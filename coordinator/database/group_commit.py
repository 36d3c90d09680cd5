"""Group commit: all writes of one iteration of the event loop to run.sqlite are one transaction.

Rules
1. The first write of an iteration opens the transaction. Its commit is the next callback of the loop, so that every
   request, verdict and tick that runs until then shares one fsync.
2. Durable before visible: await `durable` before a message to a peer or another process that depends on a write or
   read. Answers do so in `RequestHandler.serve`, batches and new versions in `Training`.
3. No transaction spans an await. Each `Database.transaction` is a savepoint: it can fail alone and undoes no other.
   A savepoint that is still open at the commit is a bug, and makes the commit fail.
4. A failed commit is final: every waiting `durable` raises its fault, and so does every later statement. So no answer
   reports uncommitted data. The daemon ends (`failed`); the next start reads the last commit.

The transaction of rule 1 is opened lazily: an iteration without writes commits nothing.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn


class GroupCommit:
    """One commit per iteration of the event loop. `begin`, `commit`: open and commit the database's transaction; both
    may raise. Use it from the event loop's thread alone."""

    def __init__(self, begin: Callable[[], None], commit: Callable[[], None]) -> None:
        self._begin = begin
        self._commit = commit
        self._waiters: asyncio.Future[None] | None = None
        self._broken: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self.fault: BaseException | None = None

    def join(self) -> None:
        """Open this iteration's transaction, unless it is already open. Call this before each write."""
        if self._waiters is None:
            loop = asyncio.get_running_loop()
            self._begin()
            self._waiters = loop.create_future()
            loop.call_soon(self.end)

    async def durable(self) -> None:
        """Return once everything written so far is committed. Raises the fault of a commit that failed."""
        if self.fault is not None:
            raise self.fault
        if self._waiters is not None:
            await asyncio.shield(self._waiters)

    async def wait_for_fault(self) -> NoReturn:
        """Wait until a commit fails, and raise its fault."""
        await asyncio.shield(self._broken)
        raise AssertionError("a fault was raised")

    def end(self) -> None:
        """Commit the open transaction, if any."""
        waiters, self._waiters = self._waiters, None
        if waiters is None:
            return
        try:
            self._commit()
        except BaseException as fault:
            self.break_with(fault)
            waiters.set_exception(fault)
            waiters.exception()  # marks it retrieved: there may be no waiter
        else:
            waiters.set_result(None)

    def break_with(self, fault: BaseException) -> None:
        """Record that the transaction is lost: every later statement raises `fault` (rule 4)."""
        if self.fault is None:
            self.fault = fault
            self._broken.set_exception(fault)
            self._broken.exception()
