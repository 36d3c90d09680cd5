"""The task protocol: a prompt from (split, index), an episode of one or more turns, a score.

Rules
1. A task is pure and deterministic: the same (name, version, split, index, text) gives the same episode on every
   machine, so that the coordinator can replay and score a node's rollouts.
2. An episode alternates turns: the policy samples tokens, then the environment may add tokens of its own. Only sampled
   tokens carry log-probabilities and loss.
3. The splits "train" and "heldout" of a task never share a prompt.
4. A node never scores: `score` is called by the coordinator alone.
5. An error of a task's own code, or a reward that is not a finite float32, makes `replay` raise `TaskFault`: the
   operator's fault.
"""

import contextlib
from collections.abc import Sequence
from operator import index as whole
from typing import Final, Literal, NamedTuple, Protocol, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from echo2.tasks.turn_ends import Ends, fault_of_turn, token_list

Split = Literal["train", "heldout"]
MOST_REWARD = 3.4028234663852886e38
"""The greatest finite float32: sums over a batch of such rewards stay finite in float64."""

MOST_REMARKS: Final = 20
MOST_REMARK_CHARACTERS: Final = 2000


class Tokenizer(Protocol):
    """Tokens for text and back; `tasks.tokenizer.load` makes one from a tokenizer.json."""

    @property
    def eos(self) -> int:
        """The token with which a task ends its own answers."""

    @property
    def ends(self) -> Ends:
        """All tokens that end a turn, `eos` first."""

    @property
    def size(self) -> int:
        """Number of token ids: valid ids are 0 .. size - 1."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens, without an end of a turn at their end; any other special token appears by its
        name. Never raises for ids in range."""


class Score(NamedTuple):
    """`reward`: the quantity that the learner maximises, any finite float32. `success`: whether the prompt was solved
    exactly."""

    reward: float
    success: bool


class Episode(Protocol):
    """One attempt at one prompt. Stateful: `reply` is called once after each sampled turn."""

    @property
    def prompt(self) -> Sequence[int]:
        """Token ids that the policy sees first."""

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        """Return the environment's tokens after a sampled turn, or None when the episode has ended.

        `sampled` ends with one of `Tokenizer.ends`, or was cut at the token limit (the episode then always ends)."""

    def score(self) -> Score:
        """Return the score so far; called after the episode has ended."""

    # An episode that the environment opens has a method `open(prompt)`, called once before its first turn: it returns
    # the tokens, at least one, with which the episode goes on behind the lease's prompt (kind `opened`).
    # An episode that holds something elsewhere may also have a method `leave()`, called once when nobody plays it on.


class Task(Protocol):
    """An environment. `name` and `version` stand in the RunSpec."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    # A task whose episodes have more than one sampled turn may also say how many at most: `turns`, a whole number.
    # A task whose samples have prompts of their own says `opened = True`: it is served, an episode's `prompt` is what
    # all prompts of its index begin with, and the episode's `open` gives the rest.
    # A task may state direction and floor of its held-out results: `measure` (tasks/measure.py).
    # A task may have sentences for the operator, on what it read and left out: `remarks`.

    def size(self, split: Split) -> int:
        """Return the number of distinct prompts: valid indices are 0 .. size - 1."""

    def episode(self, split: Split, index: int, text: Tokenizer) -> Episode: ...

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        """Return a single-turn answer with eos, for supervised warm-up only.

        With probability `slip` it is the task's usual mistake. After that, each character is replaced by a wrong one
        with probability `noise`.
        """


class Transcript(NamedTuple):
    """The tokens after a prompt. `tokens`: sampled and given, in order. `turns`: lengths of the turns, sampled
    first and then alternating, summing to len(tokens): [5] is one sampled turn, [3, 2, 4] has 2 given tokens."""

    tokens: Sequence[int] | NDArray[np.int32]
    turns: Sequence[int]


class InvalidTranscript(ValueError):
    """A transcript that this episode cannot have produced."""


class TaskFault(Exception):
    """The task's own code failed, or its reward is no finite float32. `verified`: the whole transcript was checked
    before, so that the group can still be judged by its tokens."""

    def __init__(self, message: str, *, verified: bool) -> None:
        super().__init__(message)
        self.verified = verified


class TaskBroken(TaskFault):
    """A fault after which the process of the task answers nobody: it must be ended."""

    def __init__(self, message: str) -> None:
        super().__init__(message, verified=True)


def sampled_mask(turns: Sequence[int]) -> list[bool]:
    """Return a mask, True where the policy sampled the token; same length as the transcript's tokens."""
    return [number % 2 == 0 for number, length in enumerate(turns) for _ in range(length)]


def begin_episode(task: Task, split: Split, index: int, text: Tokenizer) -> Episode:
    """Begin a fresh episode. Raises `TaskFault`."""
    with _EPISODE:
        return task.episode(split, index, text)


def prompt_of(task: Task, split: Split, index: int, text: Tokenizer) -> list[int]:
    """Return the tokens of a prompt. Raises `TaskFault`."""
    episode = begin_episode(task, split, index, text)
    try:
        with _task_code("prompt", verified=False):
            return list(map(whole, episode.prompt))
    finally:
        leave_episode(episode)


def replay(episode: Episode, transcript: Transcript, *, ends: Ends, limit: int) -> Score:
    """Walk a fresh episode through a transcript and score it.

    Verify that given tokens are the environment's own, and that an end stands only at the end of a sampled turn. Verify
    that a turn without one is cut at exactly `limit` sampled tokens in total, and that the episode is over. Raises
    `InvalidTranscript`, whose message names the fault, and `TaskFault`.
    """
    tokens, turns = transcript.tokens, list(transcript.turns)
    if not turns or sum(turns) != len(tokens) or min(turns) <= 0:
        raise InvalidTranscript("turn lengths do not add up to the tokens")
    start, sampled = 0, 0
    given: list[int] | None = []
    for number, length in enumerate(turns):
        part = tokens[start : start + length]
        start += length
        if number % 2:
            if given is None or given != token_list(part):
                raise InvalidTranscript("tokens marked as the environment's are not the environment's")
            continue
        if given is None or (number and turns[number - 1] != len(given)):
            raise InvalidTranscript("the episode was already over")
        sampled += length
        if fault := fault_of_turn(part, ends, at_limit=sampled == limit):
            raise InvalidTranscript(fault)
        if sampled > limit:
            raise InvalidTranscript("more tokens than the limit")
        given = reply_to_episode(episode, token_list(part), verified=number == len(turns) - 1)
        if sampled == limit:
            given = None
    if given is not None:
        raise InvalidTranscript("the episode is not over")
    return score_episode(episode)


def reply_to_episode(
    episode: Episode, sampled: Sequence[int], *, verified: bool = False, prompt: Sequence[int] = ()
) -> list[int] | None:
    """Return the environment's tokens after a sampled turn; None: the episode is over. A turn without tokens opens the
    episode behind the lease's `prompt`. `verified`: see `TaskFault`. Raises `TaskFault`."""
    if not sampled:
        return _opening_of(episode, prompt)
    with _LAST_REPLY if verified else _REPLY:
        reply = episode.reply(sampled)
        return None if reply is None else list(map(whole, reply))


def _opening_of(episode: Episode, prompt: Sequence[int]) -> list[int] | None:
    with _OPEN:
        given = getattr(episode, "open")(prompt)  # noqa: B009 (no method of every episode)
        return None if given is None else list(map(whole, given))


def score_episode(episode: Episode) -> Score:
    """Return the score of an episode that has ended. Raises `TaskFault`."""
    with _SCORE:
        return _finite(episode.score())


def whole_prompt(task: Task, split: Split, index: int, text: Tokenizer) -> list[int]:
    """Return all tokens before the first sampled one. Raises `TaskFault`."""
    prompt = prompt_of(task, split, index, text)
    if not opens(task):
        return prompt
    episode = begin_episode(task, split, index, text)
    try:
        return [*prompt, *(reply_to_episode(episode, [], prompt=prompt) or [])]
    finally:
        leave_episode(episode)


def leave_episode(episode: Episode) -> None:
    """Leave an episode that nobody plays on."""
    leave = getattr(episode, "leave", None)
    if leave is not None:
        with contextlib.suppress(TaskFault), _task_code("leave", verified=True):
            leave()


def demonstrate_prompt(task: Task, index: int, text: Tokenizer, seed: int, noise: float, slip: float) -> list[int]:
    """Return a demonstration for a prompt of the training split. Raises `TaskFault`."""
    with _task_code("demonstration", verified=False):
        return list(map(whole, task.demonstration("train", index, text, seed, noise, slip)))


def ready_task(task: Task, text: Tokenizer) -> None:
    """Let a task that has a method `ready` do what its first episode needs. An error is that episode's, which meets it
    again."""
    ready = getattr(task, "ready", None)
    if ready is not None:
        with contextlib.suppress(TaskFault), _task_code("ready", verified=False):
            ready(text)


def most_turns(task: Task) -> int:
    """Return the most sampled turns of the task's episodes, as far as it says so; else 1."""
    return int(getattr(task, "turns", 1))


def opens(task: Task) -> bool:
    """Tell whether the task opens its episodes: the prompts of a group's samples may differ."""
    return bool(getattr(task, "opened", False))


def remarks_of(task: Task) -> list[str]:
    """Return the task's sentences for the operator."""
    return [str(remark)[:MOST_REMARK_CHARACTERS] for remark in list(getattr(task, "remarks", ()))[:MOST_REMARKS]]


class _task_code:
    """A block that translates any error of a task's code into `TaskFault` (rule 5). Entered three times a rollout at
    receipt, hence no generator."""

    __slots__ = ("_name", "_verified")

    def __init__(self, name: str, *, verified: bool) -> None:
        self._name, self._verified = name, verified

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Literal[False]:
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, TaskFault):
            own = type(error).__module__.startswith("echo2.")  # its message is a sentence for people
            message = str(error) if own else f"{self._name} raised {type(error).__name__}: {error}"
            raise TaskFault(message, verified=self._verified) from error
        return False


_EPISODE: Final = _task_code("episode", verified=False)
_OPEN: Final = _task_code("open", verified=True)
_REPLY: Final = _task_code("reply", verified=False)
_LAST_REPLY: Final = _task_code("reply", verified=True)
_SCORE: Final = _task_code("score", verified=True)


def _finite(score: Score) -> Score:
    """Return the score as plain numbers. Raises `TaskFault` for a reward that is no finite float32."""
    reward: object = score.reward  # foreign code: its type hints prove nothing
    # A look at a protocol costs more than the score, so plain numbers are asked for first.
    if not isinstance(reward, (int, float, SupportsFloat)) or not abs(number := float(reward)) <= MOST_REWARD:
        raise TaskFault(f"the reward {reward!r:.40} is no finite float32", verified=True)
    return Score(number, bool(score.success))
