"""A task of the operator's in processes of its own: prompts and scores, whatever its code does.

Rules
1. A call runs in one of `workers` processes. A process that does not answer within `Limits.seconds` is killed; the
   episode has failed (`TaskFault`), and a new process opens the task for the next call.
2. A process that dies during a call may have been killed by somebody else: the call is repeated once, in a new process.
   If that dies too, the episode has failed.
3. A task that cannot be opened fails no episode: calls wait, and opening is tried again after `PAUSES`. `trouble` says
   why, for the page. Only the first opening (`open`) raises.
4. Nothing that a process answers is trusted: tokens are those of the model, and rewards finite.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import structlog

from coordinator.environments.environment_process import EnvironmentProcess
from coordinator.environments.limits import Limits
from coordinator.environments.messages import AskPrompt, AskScore, OpenTask, Prompted, Scored, TaskOpened
from coordinator.environments.task_host import TaskFacts
from protocol.task_kinds import SINGLE
from runtime.backoff import Backoff
from runtime.child import ChildDied, ChildError
from runtime.errors import DiskFull
from tasks.task import MOST_REWARD, InvalidTranscript, Score, Split, TaskFault, Transcript

A = TypeVar("A")
PAUSES: Final = Backoff(1.0, 60.0)
"""Seconds from a failed opening to the next."""
TRIES: Final = 2
"""Processes in which a call is tried (rule 2)."""
_FAILED = (ChildError, DiskFull, msgspec.MsgspecError)

log = structlog.get_logger("coordinator")


class EnvironmentFault(Exception):
    """The task cannot be opened: the operator's fault; the message says why."""


class _Worker:
    """A place for one process. `process`: None until the next call starts one. `failures`: to open, in a row."""

    def __init__(self) -> None:
        self.process: EnvironmentProcess | None = None
        self.failures = 0

    async def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            await process.end()


class Environment:
    """A `TaskHost` with a task that runs in `workers` processes. `trouble`: why it cannot be opened at present; empty:
    it can."""

    def __init__(
        self,
        order: OpenTask,
        limits: Limits,
        *,
        vocabulary: int,
        workers: int = 1,
        make: Callable[[Limits], EnvironmentProcess] = EnvironmentProcess,
        tell: Callable[[str], None] = lambda fault: None,
    ) -> None:
        """`vocabulary`: number of the model's token ids. `make`: returns a new process, not started. `tell`: gets each
        death of a process, and why the task cannot be opened."""
        self.order, self.limits = order, limits
        self.trouble = ""
        self._opened: TaskOpened | None = None
        self._vocabulary, self._make, self._tell = vocabulary, make, tell
        self._workers = [_Worker() for _ in range(workers)]
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        for worker in self._workers:
            self._idle.put_nowait(worker)

    @property
    def facts(self) -> TaskFacts:
        """The task's facts, known once it was opened."""
        if self._opened is None:
            raise RuntimeError("the environment was not opened")
        return TaskFacts(self.order.task, self._opened.version, SINGLE, self._opened.train, self._opened.heldout)

    async def open(self) -> TaskFacts:
        """Open the task in a first process. Raises `EnvironmentFault`."""
        worker = await self._idle.get()
        try:
            await self._start(worker)
        finally:
            self._idle.put_nowait(worker)
        if self._opened is not None and self._opened.unfiltered:
            log.warning("the environment's network and processes are not limited", reason=self._opened.unfiltered)
        return self.facts

    async def prompt(self, split: Split, index: int) -> list[int]:
        """See `TaskHost.prompt`."""
        answer = await self._ask("prompt", AskPrompt(split=split, index=index), Prompted)
        if answer.fault:
            raise TaskFault(answer.fault, verified=False)
        if not answer.tokens or not 0 <= min(answer.tokens) <= max(answer.tokens) < self._vocabulary:
            raise TaskFault("its prompt is empty, or has tokens that the model lacks", verified=False)
        return answer.tokens

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        """See `TaskHost.score`."""
        tokens = [int(token) for token in transcript.tokens]
        asked = AskScore(split=split, index=index, tokens=tokens, turns=list(transcript.turns), limit=limit)
        answer = await self._ask("score", asked, Scored)
        if answer.fault == "transcript":
            raise InvalidTranscript(answer.reason)
        if answer.fault:
            raise TaskFault(answer.reason, verified=answer.fault == "task-score")
        if not abs(answer.reward) <= MOST_REWARD:
            raise TaskFault(f"the reward {answer.reward} is no finite float32", verified=True)
        return Score(answer.reward, answer.success)

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(*(worker.end() for worker in self._workers))

    async def _ask(self, method: str, body: msgspec.Struct, answer: type[A]) -> A:
        """Call a process (rules 1 and 2). Raises `TaskFault`."""
        worker = await self._idle.get()
        try:
            for _ in range(TRIES):
                process = await self._ready(worker)
                try:
                    return await process.call(method, body, answer, timeout=self.limits.seconds)
                except ChildDied as error:
                    fault = str(error)
                    self._tell(fault)
                    await worker.end()
                except TimeoutError:
                    fault = f"no answer within {self.limits.seconds:g} s"
                    await worker.end()
                    break
                except _FAILED as error:
                    fault = str(error)
                    await worker.end()
                    break
                except asyncio.CancelledError:  # it still computes: the next call must not wait for it
                    await worker.end()
                    raise
            raise TaskFault(fault, verified=True)
        finally:
            self._idle.put_nowait(worker)

    async def _ready(self, worker: _Worker) -> EnvironmentProcess:
        """Return the worker's process with the task opened; wait until it can be opened (rule 3)."""
        while worker.process is None:
            try:
                await self._start(worker)
            except EnvironmentFault as fault:
                worker.failures += 1
                if not self.trouble:
                    self._tell(f"the environment cannot be opened: {fault}")
                self.trouble = str(fault)
                pause = PAUSES.delay(worker.failures)
                log.error("the environment cannot be opened", reason=str(fault), again_seconds=pause)
                await asyncio.sleep(pause)
        return worker.process

    async def _start(self, worker: _Worker) -> None:
        process = self._make(self.limits)
        try:
            opened = await process.open(self.order)
        except BaseException as error:
            await process.end()
            if isinstance(error, TimeoutError):
                raise EnvironmentFault(f"it was not open after {self.limits.opening:g} s") from error
            if isinstance(error, (ChildDied, OSError, *_FAILED)):
                raise EnvironmentFault(str(error)) from error
            raise
        if self._opened is not None and opened != self._opened:
            await process.end()
            raise EnvironmentFault("its version or its number of prompts has changed: start the coordinator again")
        self._opened, self.trouble = opened, ""
        worker.process, worker.failures = process, 0
