"""The processes in which a task of the operator's runs: started, asked, ended and replaced.

Rules
1. A call runs in one of `workers` processes. A process that does not answer within `Limits.seconds` is killed; the
   call has failed (`TaskFault`), and a new process opens the task for the next call.
2. A process that dies during a call may have been killed by somebody else: the call is repeated once, in a new process.
   If that dies too, the call has failed.
3. A task that cannot be opened fails no call: calls wait, and opening is tried again after `OPENING_BACKOFF`. `trouble`
   says why, for the page. Only the first opening (`open`) raises.
4. A call that ended its process fails once the task is open in the next one, or could not be opened at the first try,
   where it `opens`. So the time of opening is charged to the call that caused it, not to those that wait for it.
5. One process in `ONE_APART_IN`, at least one of several, is set apart: a call goes there only if it wants that place,
   or while no other process is free.
6. A process is started before a call comes: the first by `open`, the others behind it, one after the other, and each
   one that ended is replaced at once. A place whose process is not open yet takes no call that another place can take.
7. A call goes to the free process that has the fewest open episodes. Calls of an evaluation (`aside`) take turns with
   all others (worker_places.py).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from echo2.coordinator.environments.environment_process import EnvironmentProcess
from echo2.coordinator.environments.limits import MOST_REASON_CHARACTERS, Limits
from echo2.coordinator.environments.messages import OpenTask, TaskOpened
from echo2.coordinator.environments.task_host import EnvironmentAway, EpisodeLost
from echo2.coordinator.environments.worker_places import Places
from echo2.protocol.task_kinds import ANSWERED_KINDS, OPENED_KIND
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import DiskFull
from echo2.runtime.printable import printable
from echo2.tasks import plugins
from echo2.tasks.task import TaskFault

A = TypeVar("A")
OPENING_BACKOFF: Final = Backoff(1.0, 60.0)
"""Seconds from a failed opening to the next."""
CALL_TRIES: Final = 2
"""Processes in which a call is tried (rule 2)."""
ONE_APART_IN: Final = 4
"""New keys play in as many at once (coordinator/submissions/step_queue.py, rule 1)."""
MOST_TROUBLE_CHARACTERS: Final = 2_000
"""Most characters of why a task cannot be opened."""
FAILED_CALL_ERRORS: Final = (ChildError, DiskFull, msgspec.MsgspecError)
"""Errors of a call after which its process is ended."""

log = structlog.get_logger("coordinator")


class EnvironmentFault(Exception):
    """The task cannot be opened: the operator's fault; the message says why."""


class ProcessPlace:
    """A place for one process. `process`: None until the next call starts one. `failures`: failures to open, in a row.
    `left`: episodes that the process is to forget. `open`: those that stand in it and are played."""

    def __init__(self) -> None:
        self.process: EnvironmentProcess | None = None
        self.failures = 0
        self.left: list[bytes] = []
        self.open: set[bytes] = set()

    async def end(self) -> None:
        process, self.process = self.process, None
        self.left.clear()
        self.open.clear()
        if process is not None:
            await process.end()


class ProcessPool:
    """The processes of a task. `trouble`: why it cannot be opened at present; empty: it can. `opened`: what the first
    process said. `apart`: the places that are set apart (rule 5)."""

    def __init__(
        self,
        order: OpenTask,
        limits: Limits,
        *,
        kind: str,
        workers: int,
        make: Callable[[Limits], EnvironmentProcess],
        tell: Callable[[str], None],
    ) -> None:
        """`kind`, `make`, `tell`: the same as in `Environment`."""
        files = (*limits.files, order.tokenizer, *plugins.files_of(order.task))
        self._order, self._limits = order, msgspec.structs.replace(limits, files=files)
        self.trouble = ""
        self.opened: TaskOpened | None = None
        self._kind, self._make, self._tell = kind, make, tell
        self._workers = [ProcessPlace() for _ in range(workers)]
        self.apart = self._workers[: max(1, workers // ONE_APART_IN)] if workers > 1 else []
        self._idle = Places(self._workers, self.apart, load=lambda worker: len(worker.open))
        self._starting = set[asyncio.Task[None]]()
        """Starts that no call waits for (rule 6)."""
        self._closed = False
        self._away = asyncio.Event()
        """Set while no process is open and the last one could not be opened."""

    async def open(self) -> TaskOpened:
        """Open the task in a first process. Raises `EnvironmentFault`."""
        worker = await self._idle.take()
        try:
            opened = await self._start(worker)
        finally:
            self._idle.give(worker)
        self._start_behind([one for one in self._workers if one.process is None])
        if opened.unfiltered:
            log.warning("the environment is not limited in all", reason=opened.unfiltered)
        return opened

    @property
    def is_ready(self) -> bool:
        """Whether each place has its process, with the task opened."""
        return all(worker.process is not None for worker in self._workers)

    def is_busy(self, worker: ProcessPlace) -> bool:
        """Tell whether a place's process is answering a call."""
        return not self._idle.has(worker)

    async def close(self) -> None:
        """End the processes."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._workers))

    async def unless_away(self, asked: Coroutine[Any, Any, A]) -> A:
        """Await a call. Raises `EnvironmentAway` once no process is open or can be opened, and what the call raises."""
        call, away = asyncio.ensure_future(asked), asyncio.ensure_future(self._away.wait())
        try:
            await asyncio.wait([call, away], return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise EnvironmentAway(self.trouble)
            return call.result()
        finally:
            call.cancel()
            away.cancel()

    async def ask(
        self,
        call: Callable[[ProcessPlace, EnvironmentProcess], Awaitable[A]],
        *,
        wanted: ProcessPlace | None = None,
        aside: bool = False,
        opens: bool = False,
    ) -> A:
        """Let a call be answered by a process (rules 1, 2 and 7). `wanted`: process in this place; None: in any.
        `opens`: see rule 4. Raises `TaskFault`."""
        worker, fault = await self._idle.take(wanted, aside=aside), ""
        try:
            for _ in range(CALL_TRIES):
                process = await self._ready(worker)
                try:
                    return await call(worker, process)
                except ChildDied as error:
                    fault = printable_reason(error)
                    self._tell(f"task {self._order.task}: {fault}")
                    await worker.end()
                except EpisodeLost:
                    if not fault:
                        raise
                    break  # its own turn ended the process before
                except TimeoutError:
                    fault = f"no answer within {self._limits.seconds:g} s"
                    await worker.end()
                    break
                except FAILED_CALL_ERRORS as error:
                    fault = printable_reason(error)
                    await worker.end()
                    break
                except asyncio.CancelledError:  # it still computes: the next call must not wait for it
                    await worker.end()
                    raise
            raise TaskFault(fault, verified=True)
        except TaskFault:
            if opens and worker.process is None:
                with contextlib.suppress(EnvironmentFault):  # the next call says so
                    await self._start(worker)
            raise
        finally:
            if worker.process is None and not self._closed:
                self._start_behind([worker], taken=True)
            else:
                self._idle.give(worker)

    def _start_behind(self, workers: Sequence[ProcessPlace], *, taken: bool = False) -> None:
        """Start the processes of these places (rule 6). `taken`: the places are the caller's."""

        async def start() -> None:
            for worker in workers:
                if not taken:
                    await self._idle.take(worker)
                try:
                    await self._ready(worker)
                finally:
                    self._idle.give(worker)

        starting = asyncio.create_task(start())
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)

    async def _ready(self, worker: ProcessPlace) -> EnvironmentProcess:
        """Return the worker's process with the task opened; wait until it can be opened (rule 3). A process that ended
        between two calls is replaced."""
        if worker.process is not None and worker.process.has_ended:
            self._tell(f"task {self._order.task}: its process ended between two calls")
            await worker.end()
        while worker.process is None:
            try:
                await self._start(worker)
            except EnvironmentFault as fault:
                worker.failures += 1
                if not self.trouble:
                    self._tell(f"the environment of task {self._order.task} cannot be opened: {fault}")
                self.trouble = str(fault)
                if all(one.process is None for one in self._workers):
                    self._away.set()
                pause = OPENING_BACKOFF.delay(worker.failures)
                log.error(
                    "the environment cannot be opened", task=self._order.task, reason=str(fault), again_seconds=pause
                )
                await asyncio.sleep(pause)
        return worker.process

    async def _start(self, worker: ProcessPlace) -> TaskOpened:
        """Start a place's process and open the task in it. Raises `EnvironmentFault`."""
        process: EnvironmentProcess | None = None
        try:
            process = self._make(self._limits)
            opened = await process.open(self._order)
        except BaseException as error:
            if process is not None:
                await process.end()
            if isinstance(error, TimeoutError):
                raise EnvironmentFault(f"it was not open after {self._limits.opening:g} s") from error
            if isinstance(error, (ChildDied, OSError, *FAILED_CALL_ERRORS)):
                raise EnvironmentFault(printable_reason(error, MOST_TROUBLE_CHARACTERS)) from error
            raise
        if self._kind == OPENED_KIND and not opened.opens:
            await process.end()
            raise EnvironmentFault("it no longer opens its episodes: make it as it was when the run was made")
        if self._kind not in ANSWERED_KINDS and opened.opens:
            await process.end()
            raise EnvironmentFault('it opens its episodes: set run.kind = "served"')
        if self._kind not in ANSWERED_KINDS and opened.turns > 1:
            await process.end()
            raise EnvironmentFault(f'its episodes have up to {opened.turns} sampled turns: set run.kind = "served"')
        if self.opened is not None and opened != self.opened:
            await process.end()
            raise EnvironmentFault("its version or its number of prompts has changed: start the coordinator again")
        self.opened, self.trouble = opened, ""
        worker.process, worker.failures = process, 0
        self._away.clear()
        return opened


def printable_reason(reason: object, most: int = MOST_REASON_CHARACTERS) -> str:
    """Return a reason that a process gave, as one line of printable characters."""
    return printable(" ".join(str(reason)[: 2 * most].split()))[:most]
