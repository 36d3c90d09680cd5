"""A task of the operator's in processes of its own: prompts and scores, whatever its code does.

Rules
1. A call runs in one of `workers` processes. A process that does not answer within `Limits.seconds` is killed; the
   episode has failed (`TaskFault`), and a new process opens the task for the next call.
2. A process that dies during a call may have been killed by somebody else: the call is repeated once, in a new process.
   If that dies too, the episode has failed.
3. A task that cannot be opened fails no episode: calls wait, and opening is tried again after `PAUSES`. `trouble` says
   why, for the page. Only the first opening (`open`) raises.
4. Nothing that a process answers is trusted: tokens are those of the model, rewards finite, and a reason is one line of
   at most `REASON` characters that can be printed: it stands on the page.
5. An episode that is played turn by turn stays in the process that began it. Each of its turns has `Limits.seconds`,
   however many came before. Where that process has ended, another one begins the episode anew and takes it through its
   turns so far, in as much time for each, but at most for `REPLAYED` turns.
6. An episode whose process ended by another's doing, and that cannot be taken up again, is lost (`EpisodeLost`): it did
   not fail. One whose own turn ended the process has failed.
7. A process whose task says that it is broken (`TaskBroken`), or that has run out of memory, threads or files, is ended
   behind that answer.
8. A process forgets an episode that was left, with the next turn that it takes. A turn of an episode that is left while
   the turn waits for the process is not taken.
9. A turn that ended its process fails once the task is open in the next one, or could not be opened at the first try.
   So the time of opening is charged to the turn that caused it, not to the turns that wait for it.
10. One process in `ONE_APART_IN`, at least one of several, is set apart: an episode that is to be `apart` begins there
    and nowhere else. All other calls go there only while no other process is free. So an episode that ends its process
    takes no other with it than those apart, and those that began while all other processes were busy.
11. A process is started before a call comes: the first by `open`, the others behind it, one after the other, and each
    one that ended is replaced at once. A place whose process is not open yet takes no call that another place can take.
12. An episode begins in the free process that has the fewest open ones, so that their later turns do not wait for each
    other beside idle processes. Calls of an evaluation (`aside`) take turns with all others (worker_places.py).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import Any, Final, TypeVar

import msgspec
import structlog

from coordinator.environments.environment_process import EnvironmentProcess
from coordinator.environments.limits import REASON, Limits
from coordinator.environments.messages import (
    AskDemonstrations,
    AskEpisode,
    AskPrompt,
    AskScore,
    AskTurn,
    Demonstrated,
    EpisodeBegun,
    OpenTask,
    Prompted,
    Scored,
    TaskOpened,
    TurnTaken,
)
from coordinator.environments.task_host import EnvironmentAway, EpisodeLost, TaskFacts, TurnAnswer
from coordinator.environments.worker_places import Places
from protocol.task_kinds import ANSWERED, OPENED, SINGLE
from runtime.backoff import Backoff
from runtime.child import ChildDied, ChildError
from runtime.errors import DiskFull
from runtime.printable import printable
from tasks.task import MOST_REWARD, InvalidTranscript, Score, Split, TaskFault, Transcript

A = TypeVar("A")
PAUSES: Final = Backoff(1.0, 60.0)
"""Seconds from a failed opening to the next."""
Demonstration = tuple[list[int], list[int]]
AT_ONCE: Final = 64
"""Demonstrations of one call."""
TRIES: Final = 2
"""Processes in which a call is tried (rule 2)."""
ONE_APART_IN: Final = 4
"""New keys play in as many at once (coordinator/rollouts/step_queue.py, rule 1)."""
REPLAYED: Final = 4
"""Turns in full time that taking up an episode may last (rule 5)."""
TROUBLE: Final = 2_000
"""Most characters of why a task cannot be opened."""
_FAILED = (ChildError, DiskFull, msgspec.MsgspecError)

log = structlog.get_logger("coordinator")


class EnvironmentFault(Exception):
    """The task cannot be opened: the operator's fault; the message says why."""


class _Worker:
    """A place for one process. `process`: None until the next call starts one. `failures`: to open, in a row. `left`:
    episodes that the process is to forget. `open`: those that stand in it and are played."""

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
        """`vocabulary`: number of the model's token ids. `kind`: of the task, of protocol/task_kinds.py; a served
        task that opens its episodes is of the kind opened. `make`: returns a new
        process, not started. `tell`: gets each death of a process, and why the task cannot be opened."""
        self.order, self.limits = order, limits
        self.trouble = ""
        self._opened: TaskOpened | None = None
        self._vocabulary, self._kind, self._make, self._tell = vocabulary, kind, make, tell
        self._workers = [_Worker() for _ in range(workers)]
        self._apart = self._workers[: max(1, workers // ONE_APART_IN)] if workers > 1 else []
        """The places of episodes that are to be apart (rule 10)."""
        self._idle = Places(self._workers, self._apart, load=lambda worker: len(worker.open))
        self._names = count()
        self._starting = set[asyncio.Task[None]]()
        """Starts that no call waits for (rule 11)."""
        self._closed = False
        self._away = asyncio.Event()
        """Set while no process is open and the last one could not be opened."""

    @property
    def facts(self) -> TaskFacts:
        """The task's facts, known once it was opened."""
        if self._opened is None:
            raise RuntimeError("the environment was not opened")
        told = self._opened
        kind = OPENED if told.opens else self._kind
        return TaskFacts(self.order.task, told.version, kind, told.train, told.heldout, told.measure)

    async def open(self) -> TaskFacts:
        """Open the task in a first process. Raises `EnvironmentFault`."""
        worker = await self._idle.take()
        try:
            await self._start(worker)
        finally:
            self._idle.give(worker)
        self._start_behind([one for one in self._workers if one.process is None])
        if self._opened is not None and self._opened.unfiltered:
            log.warning("the environment's network and processes are not limited", reason=self._opened.unfiltered)
        return self.facts

    def aside(self) -> "Aside":
        """Return this environment for an evaluation (rule 12)."""
        return Aside(self)

    async def prompt(self, split: Split, index: int, *, aside: bool = False) -> list[int]:
        """See `TaskHost.prompt`. `aside`: see rule 12."""
        asked = AskPrompt(split=split, index=index)
        answer = await self._call("prompt", asked, Prompted, aside=aside)
        if answer.fault:
            raise TaskFault(_shown(answer.fault), verified=False)
        if not self._is_written(answer.tokens):
            raise TaskFault("its prompt is empty, or has tokens that the model lacks", verified=False)
        return answer.tokens

    async def score(
        self, split: Split, index: int, transcript: Transcript, limit: int, *, aside: bool = False
    ) -> Score:
        """See `TaskHost.score`. `aside`: see rule 12."""
        tokens = [int(token) for token in transcript.tokens]
        asked = AskScore(split=split, index=index, tokens=tokens, turns=list(transcript.turns), limit=limit)
        answer = await self._call("score", asked, Scored, aside=aside)
        if answer.fault == "transcript":
            raise InvalidTranscript(_shown(answer.reason))
        if answer.fault:
            raise TaskFault(_shown(answer.reason), verified=answer.fault == "task-score")
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
            answer = await self._call("demonstrate", asked, Demonstrated, times=part)
            if answer.fault:
                raise TaskFault(_shown(answer.fault), verified=False)
            if len(answer.rows) != part or not all(self._is_written(tokens) for row in answer.rows for tokens in row):
                raise TaskFault("its demonstrations are empty, or have tokens that the model lacks", verified=False)
            rows += answer.rows
        return rows

    def episode(
        self,
        split: Split,
        index: int,
        past: Sequence[Sequence[int]] = (),
        *,
        prompt: Sequence[int] = (),
        apart: bool = False,
        aside: bool = False,
    ) -> "HostedEpisode":
        """See `TaskHost.episode`. `aside`: see rule 12."""
        behind = prompt if self.facts.kind == OPENED else ()
        episode = HostedEpisode(self, b"%d" % next(self._names), split, index, past, behind, aside=aside)
        if apart and self._apart:
            free = (worker for worker in self._apart if not self.is_busy(worker))
            episode.worker = next(free, self._apart[0])
        return episode

    @property
    def is_ready(self) -> bool:
        """Whether each place has its process, with the task opened."""
        return all(worker.process is not None for worker in self._workers)

    def is_busy(self, worker: "_Worker") -> bool:
        """Tell whether a place's process is answering a call."""
        return not self._idle.has(worker)

    async def take_turn(
        self, episode: "HostedEpisode", sampled: list[int], *, last: bool, begin: Callable[[], None]
    ) -> TurnAnswer:
        """Give an episode its next sampled turn (rules 5 and 6). `begin`: as of `OpenEpisode.reply`. Raises
        `TaskFault`, `EpisodeLost`, and for an evaluation `EnvironmentAway`."""

        async def taken(worker: _Worker, process: EnvironmentProcess) -> TurnTaken:
            begin()
            if episode.is_left:
                raise TaskFault("nobody plays it any more", verified=True)
            if episode.process is not process:
                await self._begin(episode, worker, process)
            left, worker.left = worker.left, []
            asked = AskTurn(episode=episode.name, tokens=sampled, last=last, left=left)
            return await process.call("turn", asked, TurnTaken, timeout=self.limits.seconds)

        asked = self._ask(taken, wanted=episode.worker, aside=episode.aside, opens=True)
        answer = await (self._unless_away(asked) if episode.aside else asked)
        if answer.fault:
            raise TaskFault(_shown(answer.fault), verified=True)
        if answer.given is not None:
            if last or not self._is_written(answer.given):
                raise TaskFault("its answer is empty, or has tokens that the model lacks", verified=True)
            return TurnAnswer(answer.given)
        if not sampled:
            raise TaskFault("it ended before the policy was asked anything", verified=True)
        if not abs(answer.reward) <= MOST_REWARD:
            raise TaskFault(f"the reward {answer.reward} is no finite float32", verified=True)
        return TurnAnswer(None, Score(answer.reward, answer.success))

    def _is_written(self, tokens: Sequence[int]) -> bool:
        """Tell whether these are tokens of the model, at least one (rule 4)."""
        return bool(tokens) and 0 <= min(tokens) <= max(tokens) < self._vocabulary

    async def close(self) -> None:
        """End the processes."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._workers))

    async def _begin(self, episode: "HostedEpisode", worker: _Worker, process: EnvironmentProcess) -> None:
        """Begin an episode in a process, and take it through its turns so far. Raises `TaskFault`, `EpisodeLost`, and
        for an episode without turns what the call raises."""
        turns = len(episode.past) // 2
        asked = AskEpisode(
            episode=episode.name, split=episode.split, index=episode.index, past=episode.past, prompt=episode.prompt
        )
        seconds = self.limits.seconds * max(1, min(turns, REPLAYED))
        try:
            begun = await process.call("begin", asked, EpisodeBegun, timeout=seconds)
        except (ChildDied, TimeoutError, *_FAILED) as error:
            if not turns:
                raise
            await worker.end()
            raise EpisodeLost(_shown(error) or f"its turns so far took longer than {seconds:g} s") from error
        if begun.fault:
            raise EpisodeLost(_shown(begun.fault)) if turns else TaskFault(_shown(begun.fault), verified=True)
        episode.worker, episode.process = worker, process
        worker.open.add(episode.name)

    async def _unless_away(self, asked: Coroutine[Any, Any, A]) -> A:
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

    async def _call(
        self, method: str, asked: msgspec.Struct, answer: type[A], *, times: int = 1, aside: bool = False
    ) -> A:
        """Call any process. `times`: `Limits.seconds` that it may take. Raises `TaskFault`."""
        seconds = times * self.limits.seconds
        return await self._ask(
            lambda worker, process: process.call(method, asked, answer, timeout=seconds), aside=aside
        )

    async def _ask(
        self,
        call: Callable[[_Worker, EnvironmentProcess], Awaitable[A]],
        *,
        wanted: _Worker | None = None,
        aside: bool = False,
        opens: bool = False,
    ) -> A:
        """Let a call be answered by a process (rules 1, 2 and 12). `wanted`: in this place; None: in any. `opens`: see
        rule 9. Raises `TaskFault`."""
        worker, fault = await self._idle.take(wanted, aside=aside), ""
        try:
            for _ in range(TRIES):
                process = await self._ready(worker)
                try:
                    return await call(worker, process)
                except ChildDied as error:
                    fault = _shown(error)
                    self._tell(f"task {self.order.task}: {fault}")
                    await worker.end()
                except EpisodeLost:
                    if not fault:
                        raise
                    break  # its own turn ended the process before (rule 6)
                except TimeoutError:
                    fault = f"no answer within {self.limits.seconds:g} s"
                    await worker.end()
                    break
                except _FAILED as error:
                    fault = _shown(error)
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

    def _start_behind(self, workers: Sequence[_Worker], *, taken: bool = False) -> None:
        """Start the processes of these places (rule 11). `taken`: the places are the caller's."""

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

    async def _ready(self, worker: _Worker) -> EnvironmentProcess:
        """Return the worker's process with the task opened; wait until it can be opened (rule 3). A process that ended
        between two calls is replaced."""
        if worker.process is not None and worker.process.has_ended:
            self._tell(f"task {self.order.task}: its process ended between two calls")
            await worker.end()
        while worker.process is None:
            try:
                await self._start(worker)
            except EnvironmentFault as fault:
                worker.failures += 1
                if not self.trouble:
                    self._tell(f"the environment of task {self.order.task} cannot be opened: {fault}")
                self.trouble = str(fault)
                if all(one.process is None for one in self._workers):
                    self._away.set()
                pause = PAUSES.delay(worker.failures)
                log.error(
                    "the environment cannot be opened", task=self.order.task, reason=str(fault), again_seconds=pause
                )
                await asyncio.sleep(pause)
        return worker.process

    async def _start(self, worker: _Worker) -> None:
        process: EnvironmentProcess | None = None
        try:
            process = self._make(self.limits)
            opened = await process.open(self.order)
        except BaseException as error:
            if process is not None:
                await process.end()
            if isinstance(error, TimeoutError):
                raise EnvironmentFault(f"it was not open after {self.limits.opening:g} s") from error
            if isinstance(error, (ChildDied, OSError, *_FAILED)):
                raise EnvironmentFault(_shown(error, TROUBLE)) from error
            raise
        if self._kind == OPENED and not opened.opens:
            await process.end()
            raise EnvironmentFault("it no longer opens its episodes: make it as it was when the run was made")
        if self._kind not in ANSWERED and opened.opens:
            await process.end()
            raise EnvironmentFault('it opens its episodes: set run.kind = "served"')
        if self._kind not in ANSWERED and opened.turns > 1:
            await process.end()
            raise EnvironmentFault(f'its episodes have up to {opened.turns} sampled turns: set run.kind = "served"')
        if self._opened is not None and opened != self._opened:
            await process.end()
            raise EnvironmentFault("its version or its number of prompts has changed: start the coordinator again")
        self._opened, self.trouble = opened, ""
        worker.process, worker.failures = process, 0
        self._away.clear()


class HostedEpisode:
    """An `OpenEpisode` of an `Environment`. `name`: unique in it. `past`: its turns, sampled and given alternating.
    `prompt`: behind which it is opened; empty: the task is not of that kind. `worker`, `process`: where it was last,
    or is to begin; None: nowhere yet. `is_left`: nobody plays it any more. `aside`: an evaluation plays it."""

    def __init__(
        self,
        environment: Environment,
        name: bytes,
        split: Split,
        index: int,
        past: Sequence[Sequence[int]],
        prompt: Sequence[int],
        *,
        aside: bool = False,
    ) -> None:
        self.aside = aside
        self._environment, self.name, self.split, self.index = environment, name, split, index
        self.past, self.prompt = [list(tokens) for tokens in past], list(prompt)
        self.worker: _Worker | None = None
        self.process: EnvironmentProcess | None = None
        self.is_left = False

    @property
    def waits(self) -> bool:
        """See `OpenEpisode.waits`."""
        return self.worker is not None and self._environment.is_busy(self.worker)

    async def reply(
        self, sampled: Sequence[int], *, last: bool, begin: Callable[[], None] = lambda: None
    ) -> TurnAnswer:
        """See `OpenEpisode.reply`."""
        tokens = list(sampled)
        try:
            answer = await self._environment.take_turn(self, tokens, last=last, begin=begin)
        finally:
            if self.is_left:  # meanwhile: the process may have begun it since
                self.leave()
        if answer.given is not None:
            self.past += [tokens, answer.given]
        return answer

    def leave(self) -> None:
        """See `OpenEpisode.leave`."""
        self.is_left = True
        if self.worker is not None and self.worker.process is self.process:
            self.worker.left.append(self.name)
            self.worker.open.discard(self.name)


class Aside:
    """A `TaskHost`: an environment as evaluations use it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    @property
    def facts(self) -> TaskFacts:
        """The task's facts."""
        return self._environment.facts

    async def prompt(self, split: Split, index: int) -> list[int]:
        """See `TaskHost.prompt`."""
        return await self._environment.prompt(split, index, aside=True)

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        """See `TaskHost.score`."""
        return await self._environment.score(split, index, transcript, limit, aside=True)

    def episode(
        self,
        split: Split,
        index: int,
        past: Sequence[Sequence[int]] = (),
        *,
        prompt: Sequence[int] = (),
        apart: bool = False,
    ) -> HostedEpisode:
        """See `TaskHost.episode`."""
        return self._environment.episode(split, index, past, prompt=prompt, apart=apart, aside=True)


def _shown(reason: object, most: int = REASON) -> str:
    """Return a reason that a process gave, as one line (rule 4)."""
    return printable(" ".join(str(reason)[: 2 * most].split()))[:most]
