"""The run's task as the coordinator sees it: in this process (`pure`), or in processes of its own (environment.py)."""

from typing import NamedTuple, Protocol

from protocol.task_kinds import PURE
from tasks.task import Score, Split, Task, Tokenizer, Transcript, begun, prompt_of, replay


class TaskFacts(NamedTuple):
    """A task. `kind`: of protocol/task_kinds.py. `train`, `heldout`: number of prompts."""

    name: str
    version: int
    kind: str
    train: int
    heldout: int

    def size(self, split: Split) -> int:
        """Return the number of prompts of a split."""
        return self.train if split == "train" else self.heldout


class TaskHost(Protocol):
    """Prompts and scores of a task, wherever its code runs."""

    @property
    def facts(self) -> TaskFacts: ...

    async def prompt(self, split: Split, index: int) -> list[int]:
        """Return the tokens of a prompt. Raises `TaskFault`."""

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        """Return the score of an episode. `limit`: most sampled tokens. Raises `InvalidTranscript`, `TaskFault`."""


class LocalTask:
    """A `TaskHost` in this process, for a pure task."""

    def __init__(self, task: Task, text: Tokenizer) -> None:
        self._task, self._text = task, text

    @property
    def facts(self) -> TaskFacts:
        """The task's facts."""
        return facts_of(self._task)

    async def prompt(self, split: Split, index: int) -> list[int]:
        """See `TaskHost.prompt`."""
        return prompt_of(self._task, split, index, self._text)

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        """See `TaskHost.score`."""
        episode = begun(self._task, split, index, self._text)
        return replay(episode, transcript, eos=self._text.eos, limit=limit)


def facts_of(task: Task) -> TaskFacts:
    """Return the facts of a pure task."""
    return TaskFacts(task.name, task.version, PURE, task.size("train"), task.size("heldout"))
