"""Group commit: what one iteration of the event loop writes to run.sqlite is one transaction.

Rules
1. The first write of an iteration opens the transaction. Its commit is the next callback of the loop, so that every
   request, verdict and tick that runs until then shares one fsync.
2. Durable before visible: a part that tells a peer or another process of what it wrote or read awaits `durable` first.
   Answers do so in `RequestHandler.serve`, batches and new versions in `Training`.
3. Nothing awaits inside. `Database.transaction` is then a savepoint: one part fails alone and undoes no other.
   A part that is still open at the commit is a bug, and fails it.
4. A commit that fails is final: every `durable` that waited raises its fault, and so does every later statement. No
   answer can tell of what the file does not hold. The daemon ends (`failed`); the next start reads what was committed.

The transaction of rule 1 is opened lazily: an iteration that only reads, and a refusal, commits nothing.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn


class GroupCommit:
    """`begin` and `commit` a transaction of the database; both may raise. Use from the event loop's thread."""

    def __init__(self, begin: Callable[[], None], commit: Callable[[], None]) -> None:
        self._begin, self._commit = begin, commit
        self._waiters: asyncio.Future[None] | None = None
        self._broken: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self.fault: BaseException | None = None

    def join(self) -> None:
        """Open this iteration's transaction, unless it is open. Call before each write."""
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

    async def failed(self) -> NoReturn:
        """Wait until a commit fails, and raise its fault."""
        await asyncio.shield(self._broken)
        raise AssertionError("a fault was raised")

    def end(self) -> None:
        """Commit what is open."""
        waiters, self._waiters = self._waiters, None
        if waiters is None:
            return
        try:
            self._commit()
        except BaseException as fault:
            self.break_with(fault)
            waiters.set_exception(fault)
            waiters.exception()  # retrieved: nobody need wait for it
        else:
            waiters.set_result(None)

    def break_with(self, fault: BaseException) -> None:
        """Refuse everything from now on: the transaction is lost (rule 4)."""
        if self.fault is None:
            self.fault = fault
            self._broken.set_exception(fault)
            self._broken.exception()
