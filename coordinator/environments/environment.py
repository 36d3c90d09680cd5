"""A task of the operator's in processes of its own: prompts and scores, whatever its code does.

Rules
1. The processes, and when a call is repeated, fails or waits: process_pool.py.
2. Nothing that a process answers is trusted: tokens are those of the model, rewards finite, and a reason is one line of
   at most `REASON` characters that can be printed: it stands on the page.
3. An episode that is played turn by turn stays in the process that began it. Each of its turns has `Limits.seconds`,
   however many came before. Where that process has ended, another one begins the episode anew and takes it through its
   turns so far, in as much time for each, but at most for `MOST_REPLAYED_TURNS` turns.
4. An episode whose process ended by another's doing, and that cannot be taken up again, is lost (`EpisodeLost`): it did
   not fail. One whose own turn ended the process has failed.
5. A process whose task says that it is broken (`TaskBroken`), or that has run out of memory, threads or files, is ended
   behind that answer.
6. A process forgets an episode that was left, with the next turn that it takes. A turn of an episode that is left while
   the turn waits for the process is not taken.
7. An episode that is to be `apart` begins in a process set apart and nowhere else. So an episode that ends its process
   takes no other with it than those apart, and those that began while all other processes were busy.
8. An episode begins in the free process that has the fewest open ones, so that their later turns do not wait for each
   other beside idle processes.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, TypeVar

import msgspec

from echo2.coordinator.environments.environment_process import EnvironmentProcess
from echo2.coordinator.environments.limits import Limits
from echo2.coordinator.environments.messages import (
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
    TurnTaken,
)
from echo2.coordinator.environments.process_pool import FAILED_CALL_ERRORS, ProcessPlace, ProcessPool, printable_reason
from echo2.coordinator.environments.task_host import EpisodeLost, TaskFacts, TurnAnswer
from echo2.protocol.task_kinds import OPENED_KIND, SINGLE_KIND
from echo2.runtime.child import ChildDied
from echo2.tasks.task import MOST_REMARK_CHARACTERS, MOST_REWARD, InvalidTranscript, Score, Split, TaskFault, Transcript

A = TypeVar("A")
Demonstration = tuple[list[int], list[int]]
AT_ONCE: Final = 64
"""Demonstrations of one call."""
MOST_REPLAYED_TURNS: Final = 4
"""Turns in full time that taking up an episode may last (rule 3)."""


class Environment:
    """A `TaskHost` with a task that runs in `workers` processes."""

    def __init__(
        self,
        order: OpenTask,
        limits: Limits,
        *,
        vocabulary: int,
        kind: str = SINGLE_KIND,
        workers: int = 1,
        make: Callable[[Limits], EnvironmentProcess] = EnvironmentProcess,
        tell: Callable[[str], None] = lambda fault: None,
    ) -> None:
        """`vocabulary`: number of the model's token ids. `kind`: kind of the task, of protocol/task_kinds.py; a served
        task that opens its episodes is of the kind opened. `make`: returns a new process, not started. `tell`: gets
        each death of a process, and why the task cannot be opened."""
        self.order, self.limits = order, limits
        self._vocabulary, self._kind = vocabulary, kind
        self._pool = ProcessPool(order, limits, kind=kind, workers=workers, make=make, tell=tell)
        self._names = count()

    @property
    def facts(self) -> TaskFacts:
        """The task's facts, known once it was opened."""
        if (told := self._pool.opened) is None:
            raise RuntimeError("the environment was not opened")
        kind = OPENED_KIND if told.opens else self._kind
        remarks = tuple(printable_reason(remark, MOST_REMARK_CHARACTERS) for remark in told.remarks)
        return TaskFacts(self.order.task, told.version, kind, told.train, told.heldout, told.measure, remarks)

    @property
    def trouble(self) -> str:
        """Why the task cannot be opened at present; empty: it can."""
        return self._pool.trouble

    async def open(self) -> TaskFacts:
        """Open the task in a first process. Raises `EnvironmentFault`."""
        await self._pool.open()
        return self.facts

    def aside(self) -> "Aside":
        """Return this environment for an evaluation (process_pool.py, rule 7)."""
        return Aside(self)

    async def prompt(self, split: Split, index: int, *, aside: bool = False) -> list[int]:
        """See `TaskHost.prompt`. `aside`: whether it is of an evaluation."""
        asked = AskPrompt(split=split, index=index)
        answer = await self._call("prompt", asked, Prompted, aside=aside)
        if answer.fault:
            raise TaskFault(printable_reason(answer.fault), verified=False)
        if not self._is_written(answer.tokens):
            raise TaskFault("its prompt is empty, or has tokens that the model lacks", verified=False)
        return answer.tokens

    async def score(
        self, split: Split, index: int, transcript: Transcript, limit: int, *, aside: bool = False
    ) -> Score:
        """See `TaskHost.score`. `aside`: whether it is of an evaluation."""
        tokens = [int(token) for token in transcript.tokens]
        asked = AskScore(split=split, index=index, tokens=tokens, turns=list(transcript.turns), limit=limit)
        answer = await self._call("score", asked, Scored, aside=aside)
        if answer.fault == "transcript":
            raise InvalidTranscript(printable_reason(answer.reason))
        if answer.fault:
            raise TaskFault(printable_reason(answer.reason), verified=answer.fault == "task-score")
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
                raise TaskFault(printable_reason(answer.fault), verified=False)
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
        """See `TaskHost.episode`. `aside`: whether it is of an evaluation."""
        behind = prompt if self.facts.kind == OPENED_KIND else ()
        episode = HostedEpisode(self, b"%d" % next(self._names), split, index, past, behind, aside=aside)
        if apart and (places := self._pool.apart):
            free = (place for place in places if not self.is_busy(place))
            episode.worker = next(free, places[0])
        return episode

    @property
    def is_ready(self) -> bool:
        """Whether each place has its process, with the task opened."""
        return self._pool.is_ready

    def is_busy(self, worker: ProcessPlace) -> bool:
        """Tell whether a place's process is answering a call."""
        return self._pool.is_busy(worker)

    async def take_turn(
        self, episode: "HostedEpisode", sampled: list[int], *, last: bool, begin: Callable[[], None]
    ) -> TurnAnswer:
        """Give an episode its next sampled turn (rules 3 and 4). `begin`: as of `OpenEpisode.reply`. Raises
        `TaskFault`, `EpisodeLost`, and for an evaluation `EnvironmentAway`."""

        async def taken(worker: ProcessPlace, process: EnvironmentProcess) -> TurnTaken:
            begin()
            if episode.is_left:
                raise TaskFault("nobody plays it any more", verified=True)
            if episode.process is not process:
                await self._begin(episode, worker, process)
            left, worker.left = worker.left, []
            asked = AskTurn(episode=episode.name, tokens=sampled, last=last, left=left)
            return await process.call("turn", asked, TurnTaken, timeout=self.limits.seconds)

        asked = self._pool.ask(taken, wanted=episode.worker, aside=episode.aside, opens=True)
        answer = await (self._pool.unless_away(asked) if episode.aside else asked)
        if answer.fault:
            raise TaskFault(printable_reason(answer.fault), verified=True)
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
        """Tell whether these are tokens of the model, at least one (rule 2)."""
        return bool(tokens) and 0 <= min(tokens) <= max(tokens) < self._vocabulary

    async def close(self) -> None:
        """End the processes."""
        await self._pool.close()

    async def _begin(self, episode: "HostedEpisode", worker: ProcessPlace, process: EnvironmentProcess) -> None:
        """Begin an episode in a process, and take it through its turns so far. Raises `TaskFault`, `EpisodeLost`, and
        for an episode without turns what the call raises."""
        turns = len(episode.past) // 2
        asked = AskEpisode(
            episode=episode.name, split=episode.split, index=episode.index, past=episode.past, prompt=episode.prompt
        )
        seconds = self.limits.seconds * max(1, min(turns, MOST_REPLAYED_TURNS))
        try:
            begun = await process.call("begin", asked, EpisodeBegun, timeout=seconds)
        except (ChildDied, TimeoutError, *FAILED_CALL_ERRORS) as error:
            if not turns:
                raise
            await worker.end()
            raise EpisodeLost(printable_reason(error) or f"its turns so far took longer than {seconds:g} s") from error
        if begun.fault:
            raise (
                EpisodeLost(printable_reason(begun.fault))
                if turns
                else TaskFault(printable_reason(begun.fault), verified=True)
            )
        episode.worker, episode.process = worker, process
        worker.open.add(episode.name)

    async def _call(
        self, method: str, asked: msgspec.Struct, answer: type[A], *, times: int = 1, aside: bool = False
    ) -> A:
        """Call any process. `times`: `Limits.seconds` that it may take. Raises `TaskFault`."""
        seconds = times * self.limits.seconds
        return await self._pool.ask(
            lambda worker, process: process.call(method, asked, answer, timeout=seconds), aside=aside
        )


class HostedEpisode:
    """An `OpenEpisode` of an `Environment`. `name`: unique in it. `past`: its turns, sampled and given alternating.
    `prompt`: prompt behind which it is opened; empty: the task is not of that kind. `worker`, `process`: where it was
    last, or is to begin; None: nowhere yet. `is_left`: nobody plays it any more. `aside`: an evaluation plays it."""

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
        self.worker: ProcessPlace | None = None
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
