"""The order of a task's prompts: a seeded shuffle of its train split, without repetition within a pass.

Rules
1. Position k is always the same prompt: the order depends on the run's seed alone, on no state. With `run.prompts`
   "variance" the prompt is chosen among several by what is stored with the position (prompt_choice.py).
2. A prompt too long to leave room for the token limit in the model's context is not used: `TaskFault`.
3. After the last prompt the next pass begins, shuffled anew. Fresh sampling seeds make its groups different.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from echo2.tasks.task import Task, TaskFault, Tokenizer, prompt_of

_ROUNDS = 4


class Prompt(msgspec.Struct, frozen=True):
    """A prompt of a task. `index`: index in the task's train split. `tokens`: the tokens that the policy sees first."""

    task: str
    task_version: int
    index: int
    tokens: list[int]


class PromptPlace(NamedTuple):
    """The place of a position in its task's own order. `position`: position in that order."""

    task: str
    task_version: int
    order: "PromptOrder"
    position: int


class PromptSource(Protocol):
    """A sequence of prompts without end."""

    def at(self, position: int, index: int | None = None) -> Prompt:
        """Return the prompt at a position. `index`: index of the task's train split; None: that of the task's order.
        Raises `TaskFault` if the task cannot give it, `PromptPending` if it is not there yet."""

    def place(self, position: int) -> PromptPlace:
        """Return the place of a position in its task's own order."""

    def expect(self, position: int, index: int) -> None:
        """Note that `at` will be called with these arguments soon."""


class PromptPending(TaskFault):
    """The prompt is not posed yet: ask again soon."""

    def __init__(self, message: str) -> None:
        super().__init__(message, verified=False)


class PromptOrder:
    """The order of the prompts of a task (rules 1 and 3). `size`: prompts in a pass. `seed`: seed of the order."""

    def __init__(self, size: int, seed: int) -> None:
        """`size`: number of training prompts. Raises ValueError if there is none."""
        self.size, self.seed = size, seed
        if not size:
            raise ValueError("the task has no prompt to train on")

    def index(self, position: int) -> int:
        """Return the index in the train split at a position."""
        pass_number, index = divmod(position, self.size)
        return shuffle_index(index, self.size, b"%d/%d" % (self.seed, pass_number))


class TaskPrompts:
    """The train split of a pure task, as a sequence without end."""

    def __init__(self, task: Task, text: Tokenizer, seed: int, room: int | None = None) -> None:
        """Set the order of prompts. `room`: the same as in `check_room`."""
        self._room = room
        self._task = task
        self._text = text
        self._order = PromptOrder(task.size("train"), seed)
        self.size = self._order.size

    def at(self, position: int, index: int | None = None) -> Prompt:
        """Return the prompt at a position, as `PromptSource.at` says."""
        task, index = self._task, self._order.index(position) if index is None else index
        tokens = prompt_of(task, "train", index, self._text)
        check_room(task.name, index, tokens, self._room)
        return Prompt(task.name, task.version, index, tokens)

    def place(self, position: int) -> PromptPlace:
        """See `PromptSource.place`."""
        return PromptPlace(self._task.name, self._task.version, self._order, position)

    def expect(self, position: int, index: int) -> None:
        """Nothing is made ahead: `at` is quick."""


def check_room(task: str, index: int, tokens: Sequence[int], room: int | None) -> None:
    """Check the length of a prompt (rule 2). `room`: most tokens of a prompt, the model's context less the limit; None:
    the model states no context. Raises `TaskFault`."""
    if room is not None and len(tokens) > room:
        raise TaskFault(
            f"prompt {index} of {task} has {len(tokens)} tokens; the model's context less run.limit leaves {room}",
            verified=False,
        )


def shuffle_index(index: int, size: int, key: bytes) -> int:
    """Return the image of `index` under a keyed permutation of range(size), in constant memory.

    A Feistel network permutes the next even power of two. It is applied until the value falls into the range (cycle
    walking, Black and Rogaway 2002), on average less than four times.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    while True:
        index = _permute_index(index, half, key)
        if index < size:
            return index


def _permute_index(index: int, half: int, key: bytes) -> int:
    mask = (1 << half) - 1
    left, right = index >> half, index & mask
    for number in range(_ROUNDS):
        digest = hashlib.blake2b(b"%d/%d" % (number, right), key=hashlib.sha256(key).digest(), digest_size=8).digest()
        left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
    return left << half | right
