"""The run's task as the coordinator sees it: in this process (`pure`), or in processes of its own (environment.py)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from echo2.protocol.task_kinds import PURE_KIND
from echo2.tasks.measure import Measure, measure_of
from echo2.tasks.task import (
    Episode,
    Score,
    Split,
    Task,
    TaskFault,
    Tokenizer,
    Transcript,
    begin_episode,
    prompt_of,
    replay,
    reply_to_episode,
    score_episode,
)


class TaskFacts(NamedTuple):
    """A task. `kind`: kind of protocol/task_kinds.py. `train`, `heldout`: number of prompts. `measure`: measure of its
    held-out results. `remarks`: its sentences for the operator."""

    name: str
    version: int
    kind: str
    train: int
    heldout: int
    measure: Measure = Measure()
    remarks: tuple[str, ...] = ()

    def size(self, split: Split) -> int:
        """Return the number of prompts of a split."""
        return self.train if split == "train" else self.heldout


class EpisodeLost(TaskFault):
    """An episode whose process ended by another's doing, and that cannot be taken up again. Nobody's fault: it counts
    neither against the task nor against the node."""

    def __init__(self, why: str) -> None:
        super().__init__(f"its process was lost, and {why}", verified=True)


class EnvironmentAway(Exception):
    """No process of a task is open, and the last one could not be opened: an evaluation waits until one can."""


class TurnAnswer(NamedTuple):
    """The environment's answer to a sampled turn. `given`: its tokens; None: the episode is over, with `score`."""

    given: list[int] | None
    score: Score | None = None


class OpenEpisode(Protocol):
    """An episode that is played turn by turn."""

    @property
    def waits(self) -> bool:
        """Whether its next turn would wait for the process that has it, which is answering something else."""

    async def reply(
        self, sampled: Sequence[int], *, last: bool, begin: Callable[[], None] = lambda: None
    ) -> TurnAnswer:
        """Give it the next sampled turn; one without tokens opens it. `begin`: called when a process takes the turn,
        again for a second one.
        `last`: it is over whatever the answer. One call at a time. Raises `TaskFault`: it has failed, and has no score;
        `EpisodeLost`: it has ended without one."""

    def leave(self) -> None:
        """Forget it. Call once, however it ended."""


class TaskHost(Protocol):
    """Prompts and scores of a task, wherever its code runs."""

    @property
    def facts(self) -> TaskFacts: ...

    async def prompt(self, split: Split, index: int) -> list[int]:
        """Return the tokens of a prompt. Raises `TaskFault`."""

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        """Return the score of an episode. `limit`: most sampled tokens. Raises `InvalidTranscript`, `TaskFault`."""

    def episode(
        self,
        split: Split,
        index: int,
        past: Sequence[Sequence[int]] = (),
        *,
        prompt: Sequence[int] = (),
        apart: bool = False,
    ) -> OpenEpisode:
        """Return an episode to be played. `past`: the turns that it has already, sampled and given alternating.
        `prompt`: prompt of its lease, behind which a task of the kind opened goes on. `apart`: whether it is kept from
        the processes of other episodes, as far as there are some."""


class LocalTask:
    """A `TaskHost` in this process, for a pure task."""

    def __init__(self, task: Task, text: Tokenizer) -> None:
        self._task, self._text = task, text

    @property
    def facts(self) -> TaskFacts:
        return facts_of(self._task)

    async def prompt(self, split: Split, index: int) -> list[int]:
        """See `TaskHost.prompt`."""
        return prompt_of(self._task, split, index, self._text)

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        """See `TaskHost.score`."""
        episode = begin_episode(self._task, split, index, self._text)
        return replay(episode, transcript, ends=self._text.ends, limit=limit)

    def episode(
        self,
        split: Split,
        index: int,
        past: Sequence[Sequence[int]] = (),
        *,
        prompt: Sequence[int] = (),
        apart: bool = False,
    ) -> "LocalEpisode":
        """See `TaskHost.episode`."""
        return LocalEpisode(begin_episode(self._task, split, index, self._text), past, prompt)


class LocalEpisode:
    """An `OpenEpisode` in this process."""

    def __init__(self, episode: Episode, past: Sequence[Sequence[int]], prompt: Sequence[int]) -> None:
        self._episode, self._prompt = episode, prompt
        for sampled, given in zip(past[0::2], past[1::2], strict=True):
            if reply_to_episode(episode, sampled, prompt=prompt) != list(given):
                raise TaskFault("the episode answers otherwise than before", verified=True)

    @property
    def waits(self) -> bool:
        """See `OpenEpisode.waits`."""
        return False

    async def reply(
        self, sampled: Sequence[int], *, last: bool, begin: Callable[[], None] = lambda: None
    ) -> TurnAnswer:
        """See `OpenEpisode.reply`."""
        begin()
        given = reply_to_episode(self._episode, sampled, prompt=self._prompt)
        return TurnAnswer(None, score_episode(self._episode)) if given is None or last else TurnAnswer(given)

    def leave(self) -> None:
        """Nothing is kept elsewhere."""


def facts_of(task: Task) -> TaskFacts:
    return TaskFacts(task.name, task.version, PURE_KIND, task.size("train"), task.size("heldout"), measure_of(task))
