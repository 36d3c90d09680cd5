"""A task of the operator's in processes of its own: prompts and scores, whatever its code does.

Rules
1. A call runs in one of `workers` processes. A process that does not answer within `Limits.seconds` is killed; the
   episode has failed (`TaskFault`), and a new process opens the task for the next call.
2. A process that dies during a call may have been killed by somebody else: the call is repeated once, in a new process.
   If that dies too, the episode has failed.
3. A task that cannot be opened fails no episode: calls wait, and opening is tried again after `PAUSES`. `trouble` says
   why, for the page. Only the first opening (`open`) raises.
4. Nothing that a process answers is trusted: tokens are those of the model, and rewards finite.
5. An episode that is played turn by turn stays in the process that began it. Where that has ended, another one begins
   it anew and takes it through its turns so far: an episode that then answers otherwise than before has failed.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, TypeVar

import msgspec
import structlog

from coordinator.environments.environment_process import EnvironmentProcess
from coordinator.environments.limits import Limits
from coordinator.environments.messages import (
    AskDemonstrations,
    AskPrompt,
    AskScore,
    AskTurn,
    Demonstrated,
    OpenTask,
    Prompted,
    Scored,
    TaskOpened,
    TurnTaken,
)
from coordinator.environments.task_host import TaskFacts, TurnAnswer
from coordinator.environments.worker_places import Places
from protocol.task_kinds import SERVED, SINGLE
from runtime.backoff import Backoff
from runtime.child import ChildDied, ChildError
from runtime.errors import DiskFull
from tasks.task import MOST_REWARD, InvalidTranscript, Score, Split, TaskFault, Transcript

A = TypeVar("A")
PAUSES: Final = Backoff(1.0, 60.0)
"""Seconds from a failed opening to the next."""
Demonstration = tuple[list[int], list[int]]
AT_ONCE: Final = 64
"""Demonstrations of one call."""
TRIES: Final = 2
"""Processes in which a call is tried (rule 2)."""
_FAILED = (ChildError, DiskFull, msgspec.MsgspecError)

log = structlog.get_logger("coordinator")


class EnvironmentFault(Exception):
    """The task cannot be opened: the operator's fault; the message says why."""


class _Worker:
    """A place for one process. `process`: None until the next call starts one. `failures`: to open, in a row. `left`:
    episodes that the process is to forget."""

    def __init__(self) -> None:
        self.process: EnvironmentProcess | None = None
        self.failures = 0
        self.left: list[bytes] = []

    async def end(self) -> None:
        process, self.process = self.process, None
        self.left.clear()
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
        kind: str = SINGLE,
        workers: int = 1,
        make: Callable[[Limits], EnvironmentProcess] = EnvironmentProcess,
        tell: Callable[[str], None] = lambda fault: None,
    ) -> None:
        """`vocabulary`: number of the model's token ids. `kind`: of the task: single or served. `make`: returns a new
        process, not started. `tell`: gets each death of a process, and why the task cannot be opened."""
        self.order, self.limits = order, limits
        self.trouble = ""
        self._opened: TaskOpened | None = None
        self._vocabulary, self._kind, self._make, self._tell = vocabulary, kind, make, tell
        self._workers = [_Worker() for _ in range(workers)]
        self._idle = Places(self._workers)
        self._names = count()

    @property
    def facts(self) -> TaskFacts:
        """The task's facts, known once it was opened."""
        if self._opened is None:
            raise RuntimeError("the environment was not opened")
        told = self._opened
        return TaskFacts(self.order.task, told.version, self._kind, told.train, told.heldout, told.measure)

    async def open(self) -> TaskFacts:
        """Open the task in a first process. Raises `EnvironmentFault`."""
        worker = await self._idle.take()
        try:
            await self._start(worker)
        finally:
            self._idle.give(worker)
        if self._opened is not None and self._opened.unfiltered:
            log.warning("the environment's network and processes are not limited", reason=self._opened.unfiltered)
        return self.facts

    async def prompt(self, split: Split, index: int) -> list[int]:
        """See `TaskHost.prompt`."""
        asked = AskPrompt(split=split, index=index)
        answer = await self._ask("prompt", lambda worker: asked, Prompted)
        if answer.fault:
            raise TaskFault(answer.fault, verified=False)
        if not self._is_written(answer.tokens):
            raise TaskFault("its prompt is empty, or has tokens that the model lacks", verified=False)
        return answer.tokens

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        """See `TaskHost.score`."""
        tokens = [int(token) for token in transcript.tokens]
        asked = AskScore(split=split, index=index, tokens=tokens, turns=list(transcript.turns), limit=limit)
        answer = await self._ask("score", lambda worker: asked, Scored)
        if answer.fault == "transcript":
            raise InvalidTranscript(answer.reason)
        if answer.fault:
            raise TaskFault(answer.reason, verified=answer.fault == "task-score")
        if not abs(answer.reward) <= MOST_REWARD:
            raise TaskFault(f"the reward {answer.reward} is no finite float32", verified=True)
        return Score(answer.reward, answer.success)

    async def demonstrations(self, number: int, seed: int, noise: float, slip: float) -> list[Demonstration]:
        """Return (tokens of a prompt, of its answer) of the training split, as the task answers itself. Raises
        `TaskFault`."""
        rows = list[Demonstration]()
        while len(rows) < number:
            part = min(AT_ONCE, number - len(rows))
            asked = AskDemonstrations(number=part, seed=seed + len(rows), noise=noise, slip=slip)
            answer = await self._ask("demonstrate", lambda worker, asked=asked: asked, Demonstrated, turns=part)  # type: ignore[misc]
            if answer.fault:
                raise TaskFault(answer.fault, verified=False)
            if len(answer.rows) != part or not all(self._is_written(tokens) for row in answer.rows for tokens in row):
                raise TaskFault("its demonstrations are empty, or have tokens that the model lacks", verified=False)
            rows += answer.rows
        return rows

    def episode(self, split: Split, index: int, past: Sequence[Sequence[int]] = ()) -> "HostedEpisode":
        """See `TaskHost.episode`."""
        return HostedEpisode(self, b"%d" % next(self._names), split, index, past)

    async def take_turn(self, episode: "HostedEpisode", sampled: list[int], *, last: bool) -> TurnAnswer:
        """Give an episode its next sampled turn (rule 5). Raises `TaskFault`."""

        def asked(worker: _Worker) -> AskTurn:
            begun = worker.process is not None and worker.process is episode.process
            episode.worker, episode.process = worker, worker.process
            left, worker.left = worker.left, []
            past = None if begun else episode.past
            return AskTurn(
                episode=episode.name, split=episode.split, index=episode.index, past=past, tokens=sampled, last=last,
                left=left,
            )  # fmt: skip

        turns = 1 + len(episode.past) // 2
        answer = await self._ask("turn", asked, TurnTaken, wanted=episode.worker, turns=turns)
        if answer.fault:
            raise TaskFault(answer.fault, verified=True)
        if answer.given is not None:
            if last or not self._is_written(answer.given):
                raise TaskFault("its answer is empty, or has tokens that the model lacks", verified=True)
            return TurnAnswer(answer.given)
        if not abs(answer.reward) <= MOST_REWARD:
            raise TaskFault(f"the reward {answer.reward} is no finite float32", verified=True)
        return TurnAnswer(None, Score(answer.reward, answer.success))

    def _is_written(self, tokens: Sequence[int]) -> bool:
        """Tell whether these are tokens of the model, at least one (rule 4)."""
        return bool(tokens) and 0 <= min(tokens) <= max(tokens) < self._vocabulary

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(*(worker.end() for worker in self._workers))

    async def _ask(
        self,
        method: str,
        body: Callable[[_Worker], msgspec.Struct],
        answer: type[A],
        *,
        wanted: _Worker | None = None,
        turns: int = 1,
    ) -> A:
        """Call a process (rules 1 and 2). `body`: returns the call's body for a worker. `wanted`: in this place; None:
        in any. `turns`: that it may have to take, each in `Limits.seconds`. Raises `TaskFault`."""
        worker, seconds = await self._idle.take(wanted), turns * self.limits.seconds
        try:
            for _ in range(TRIES):
                process = await self._ready(worker)
                try:
                    return await process.call(method, body(worker), answer, timeout=seconds)
                except ChildDied as error:
                    fault = str(error)
                    self._tell(f"task {self.order.task}: {fault}")
                    await worker.end()
                except TimeoutError:
                    fault = f"no answer within {seconds:g} s"
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
            self._idle.give(worker)

    async def _ready(self, worker: _Worker) -> EnvironmentProcess:
        """Return the worker's process with the task opened; wait until it can be opened (rule 3)."""
        while worker.process is None:
            try:
                await self._start(worker)
            except EnvironmentFault as fault:
                worker.failures += 1
                if not self.trouble:
                    self._tell(f"the environment of task {self.order.task} cannot be opened: {fault}")
                self.trouble = str(fault)
                pause = PAUSES.delay(worker.failures)
                log.error(
                    "the environment cannot be opened", task=self.order.task, reason=str(fault), again_seconds=pause
                )
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
        if self._kind != SERVED and opened.turns > 1:
            await process.end()
            raise EnvironmentFault(f'its episodes have up to {opened.turns} sampled turns: set run.kind = "served"')
        if self._opened is not None and opened != self._opened:
            await process.end()
            raise EnvironmentFault("its version or its number of prompts has changed: start the coordinator again")
        self._opened, self.trouble = opened, ""
        worker.process, worker.failures = process, 0


class HostedEpisode:
    """An `OpenEpisode` of an `Environment`. `name`: unique in it. `past`: its turns, sampled and given alternating.
    `worker`, `process`: where it was last; None: nowhere yet."""

    def __init__(
        self, environment: Environment, name: bytes, split: Split, index: int, past: Sequence[Sequence[int]]
    ) -> None:
        self._environment, self.name, self.split, self.index = environment, name, split, index
        self.past = [list(tokens) for tokens in past]
        self.worker: _Worker | None = None
        self.process: EnvironmentProcess | None = None

    async def reply(self, sampled: Sequence[int], *, last: bool) -> TurnAnswer:
        """See `OpenEpisode.reply`."""
        tokens = list(sampled)
        answer = await self._environment.take_turn(self, tokens, last=last)
        if answer.given is not None:
            self.past += [tokens, answer.given]
        return answer

    def leave(self) -> None:
        """See `OpenEpisode.leave`."""
        if self.worker is not None and self.worker.process is self.process:
            self.worker.left.append(self.name)
