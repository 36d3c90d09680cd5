"""Stand-ins for an environment in the tests' process: tasks that no node has, which can fail and be stopped."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

import anyio

from echo2.coordinator.environments.task_host import LocalTask, OpenEpisode, TaskFacts, TurnAnswer
from echo2.protocol.task_kinds import SERVED_KIND, SINGLE_KIND
from echo2.tasks.arithmetic import REVERSE_TASK
from echo2.tasks.chat import tokens_of_prompt, tokens_of_reply
from echo2.tasks.task import Score, Split, Task, TaskFault, Tokenizer, Transcript


class HostedTask:
    """A `TaskHost` of the kind single. `going`: cleared, no episode is scored. `failing`: every n-th episode fails; 0:
    none does. `scored`: episodes."""

    def __init__(self, text: Tokenizer, task: Task = REVERSE_TASK, *, failing: int = 0, name: str = "riddle") -> None:
        self._task, self._name = LocalTask(task, text), name
        self.failing = failing
        self.going = asyncio.Event()
        self.going.set()
        self.scored = 0

    @property
    def facts(self) -> TaskFacts:
        return self._task.facts._replace(name=self._name, version=3, kind=SINGLE_KIND)

    async def prompt(self, split: Split, index: int) -> list[int]:
        return await self._task.prompt(split, index)

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        if split == "train":
            await self.going.wait()
            self.scored += 1
            if self.failing and self.scored % self.failing == 0:
                raise TaskFault("score raised ZeroDivisionError: division by zero", verified=True)
        return await self._task.score(split, index, transcript, limit)

    def episode(
        self,
        split: Split,
        index: int,
        past: Sequence[Sequence[int]] = (),
        *,
        prompt: Sequence[int] = (),
        apart: bool = False,
    ) -> OpenEpisode:
        return self._task.episode(split, index, past)


class EchoEpisode:
    """See `Echoes`."""

    def __init__(self, prompt: list[int], turns: int) -> None:
        self.prompt, self._left, self._said = prompt, turns, list[int]()

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._left -= 1
        self._said += sampled
        return [2 + len(sampled), 3 + self._left] if self._left else None

    def score(self) -> Score:
        return Score(self._said.count(5) / len(self._said), 5 in self._said)


class Echoes:
    """A task whose environment says how long each turn was and how many are left; a 5 in a turn is rewarded."""

    name, version = "echoes", 1

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def size(self, split: Split) -> int:
        return 100

    def episode(self, split: Split, index: int, text: Tokenizer) -> EchoEpisode:
        return EchoEpisode([2 + index % 50, 3 + (split == "train")], self.turns)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        return [5, text.eos]


class DealtEpisode(EchoEpisode):
    """See `Dealt`."""

    def __init__(self, prompt: list[int], turns: int, opening: list[int]) -> None:
        super().__init__(prompt, turns)
        self._opening = opening

    def open(self, prompt: Sequence[int]) -> Sequence[int]:
        if list(prompt) != self.prompt:
            raise TaskFault("its prompt does not begin as that of its lease", verified=True)
        return self._opening


class Dealt(Echoes):
    """`Echoes` whose episodes are opened with one of ten numbers, another for each."""

    BEGINNING: Final = (7, 9)
    opened = True

    def __init__(self, turns: int) -> None:
        super().__init__(turns)
        self._dealt = count()

    def episode(self, split: Split, index: int, text: Tokenizer) -> DealtEpisode:
        return DealtEpisode(list(self.BEGINNING), self.turns, [10 + next(self._dealt) % 10, 3])


class TalkEpisode:
    """See `Talks`."""

    def __init__(self, prompt: list[int], turns: int, text: Tokenizer) -> None:
        self.prompt, self._turns, self._text, self._said = prompt, turns, text, list[str]()

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._said.append(self._text.decode(sampled))
        return tokens_of_reply(self._text, "And then?") if len(self._said) < self._turns else None

    def score(self) -> Score:
        said = "".join(self._said)
        return Score(sum(map(str.isdigit, said)) / max(1, len(said)), False)


class Talks:
    """A task whose turns are messages; the reward is the share of digits."""

    name, version = "talks", 1

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def size(self, split: Split) -> int:
        return 100

    def episode(self, split: Split, index: int, text: Tokenizer) -> TalkEpisode:
        return TalkEpisode(tokens_of_prompt(text, [{"role": "user", "content": f"{split} {index}"}]), self.turns, text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        return [*text.encode("1"), text.eos]


class ServedTask:
    """A `TaskHost` of the kind served, over a task of the registry. `going`: cleared, no turn from number `stops_at` of
    an episode on is answered. `failing`: every n-th episode that begins fails at its first turn; 0: none does.
    `seconds`: of an answer. `begun`: episodes of the train split. `turns`: answered. `past`: the longest past with
    which an episode was begun, in turns. `open`: episodes that were begun and not left."""

    def __init__(
        self,
        text: Tokenizer,
        task: Task,
        *,
        failing: int = 0,
        seconds: float = 0.0,
        name: str = "riddles",
        kind: str = SERVED_KIND,
    ) -> None:
        self._name, self._kind = name, kind
        self._task, self.failing, self.seconds, self.stops_at = LocalTask(task, text), failing, seconds, 0
        self.going = asyncio.Event()
        self.going.set()
        self.begun = self.turns = self.past = self.open = 0

    @property
    def facts(self) -> TaskFacts:
        return self._task.facts._replace(name=self._name, version=3, kind=self._kind)

    async def prompt(self, split: Split, index: int) -> list[int]:
        return await self._task.prompt(split, index)

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        raise AssertionError("a served group is scored turn by turn")

    def episode(
        self,
        split: Split,
        index: int,
        past: Sequence[Sequence[int]] = (),
        *,
        prompt: Sequence[int] = (),
        apart: bool = False,
    ) -> "ServedEpisode":
        episode = self._task.episode(split, index, past, prompt=prompt)
        if split == "heldout":
            return ServedEpisode(None, episode, 0, fails=False)
        self.begun += 1
        self.open += 1
        self.past = max(self.past, len(past))
        return ServedEpisode(self, episode, len(past) // 2, fails=bool(self.failing) and self.begun % self.failing == 0)


class ServedEpisode:
    """An episode of a `ServedTask`; of the held-out split without one."""

    def __init__(self, task: ServedTask | None, episode: OpenEpisode, turns: int, *, fails: bool) -> None:
        self._task, self._episode, self._turns, self._fails = task, episode, turns, fails

    waits = False

    async def reply(
        self, sampled: Sequence[int], *, last: bool, begin: Callable[[], None] = lambda: None
    ) -> TurnAnswer:
        if self._task is not None:
            if self._turns >= self._task.stops_at:
                await self._task.going.wait()
            self._turns += 1
            await anyio.sleep(self._task.seconds)
            self._task.turns += 1
        if self._fails:
            raise TaskFault("reply raised ZeroDivisionError: division by zero", verified=True)
        return await self._episode.reply(sampled, last=last, begin=begin)

    def leave(self) -> None:
        if self._task is not None:
            self._task.open -= 1
