"""The process of an environment: it opens one task, then poses prompts and scores episodes, one at a time. Episodes of
several turns stay open between calls, by name.

A process that is out of memory, threads or file descriptors has most likely lost them to a leak of the task's, by which
each later episode would fail, too: it is ended behind that answer (`TaskBroken`).

Run as `python -m echo2.coordinator.environments.environment_host LIMITS`; LIMITS is a `Limits` as JSON. The limits are
set before any code of the task is imported.
"""

import errno
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.environments.limits import MOST_REASON_CHARACTERS, Limits, apply
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
    TaskOpened,
    TurnTaken,
)
from echo2.runtime.child_pipe import Pipe
from echo2.runtime.namespaces import NamespaceRefused
from echo2.runtime.own_memory import keep_private
from echo2.tasks import plugins
from echo2.tasks.chat import ChatTokenizer
from echo2.tasks.measure import measure_of
from echo2.tasks.task import (
    Episode,
    InvalidTranscript,
    Split,
    Task,
    TaskBroken,
    TaskFault,
    Tokenizer,
    Transcript,
    begin_episode,
    demonstrate_prompt,
    leave_episode,
    most_turns,
    opens,
    prompt_of,
    ready_task,
    remarks_of,
    replay,
    reply_to_episode,
    score_episode,
    whole_prompt,
)

_SPENT_ERRORS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
MOST_PROMPTS: Final = (1 << 53) - 1
"""Indices travel as whole numbers below 2^53."""
_NO_THREAD = "can't start new thread"
"""The text of threading's RuntimeError."""


class _Opened(NamedTuple):
    """The task, and what writes its tokens."""

    task: Task
    text: Tokenizer


class _Played(NamedTuple):
    """An episode that stays open. `prompt`: prompt of its lease, where the task opens it."""

    episode: Episode
    prompt: list[int]


class EnvironmentHost:
    """The handlers of the calls of coordinator/environments/messages.py."""

    def __init__(self, unfiltered: str) -> None:
        self._unfiltered = unfiltered
        self._opened: _Opened | None = None
        self._episodes: dict[bytes, _Played] = {}

    def open(self, order: OpenTask) -> TaskOpened:
        """Open the task. Raises any error of its code."""
        from echo2.tasks import tokenizer

        task = plugins.find(order.task, order.version)
        text = tokenizer.load(Path(order.tokenizer), order.eos, *order.other_ends)
        written = text if order.chat is None else ChatTokenizer(text, order.chat)
        self._opened = _Opened(task, written)
        ready_task(task, written)
        return TaskOpened(
            version=task.version,
            turns=most_turns(task),
            unfiltered=self._unfiltered,
            measure=measure_of(task),
            opens=opens(task),
            remarks=remarks_of(task),
            train=_size(task, "train", 1),
            heldout=_size(task, "heldout", 0),
        )

    def prompt(self, asked: AskPrompt) -> Prompted:
        task, text = self._task()
        try:
            return Prompted(tokens=prompt_of(task, asked.split, asked.index, text))
        except TaskFault as fault:
            return Prompted(fault=_reason(fault))

    def score(self, asked: AskScore) -> Scored:
        """Replay an episode, and score it."""
        task, text = self._task()
        try:
            episode = begin_episode(task, asked.split, asked.index, text)
            try:
                score = replay(episode, Transcript(asked.tokens, asked.turns), ends=text.ends, limit=asked.limit)
            finally:
                leave_episode(episode)
        except InvalidTranscript as error:
            return Scored(fault="transcript", reason=str(error))
        except TaskFault as fault:
            return Scored(fault="task-score" if fault.verified else "not-scorable", reason=_reason(fault))
        return Scored(reward=score.reward, success=score.success)

    def demonstrate(self, asked: AskDemonstrations) -> Demonstrated:
        """Return answers of the task's own."""
        task, text = self._task()
        chance, size = random.Random(asked.seed), task.size("train")
        rows = list[tuple[list[int], list[int]]]()
        try:
            for _ in range(asked.number):
                index, seed = chance.randrange(size), chance.randrange(1 << 31)
                rows.append(
                    (
                        whole_prompt(task, "train", index, text),
                        demonstrate_prompt(task, index, text, seed, asked.noise, asked.slip),
                    )
                )
        except TaskFault as fault:
            return Demonstrated(fault=_reason(fault))
        return Demonstrated(rows=rows)

    def begin(self, asked: AskEpisode) -> EpisodeBegun:
        """Begin an episode, and take it through the turns that it had in another process."""
        task, text = self._task()
        try:
            played = _Played(begin_episode(task, asked.split, asked.index, text), asked.prompt)
        except TaskFault as fault:
            return EpisodeBegun(fault=_reason(fault))
        stuck = _stuck(played, asked.past)
        if stuck:
            leave_episode(played.episode)
        else:
            self._episodes[asked.episode] = played
        return EpisodeBegun(fault=stuck)

    def take_turn(self, asked: AskTurn) -> TurnTaken:
        """Give an episode its next sampled turn."""
        for name in asked.left:
            if name in self._episodes:
                leave_episode(self._episodes.pop(name).episode)
        try:
            episode, prompt = self._episodes[asked.episode]
            given = reply_to_episode(episode, asked.tokens, prompt=prompt)
            if given is not None and not asked.last:
                return TurnTaken(given=given)
            score = score_episode(episode)
        except TaskFault as fault:
            return TurnTaken(fault=_reason(fault))
        return TurnTaken(reward=score.reward, success=score.success)

    def _task(self) -> _Opened:
        if self._opened is None:
            raise RuntimeError("no task is open")
        return self._opened


def _size(task: Task, split: Split, least: int) -> int:
    """Return the number of a split's prompts. Raises ValueError for one that no lease can name."""
    size: object = task.size(split)  # foreign code: its type hints prove nothing
    if not isinstance(size, int) or not least <= size <= MOST_PROMPTS:
        raise ValueError(f"its size('{split}') is {size!r:.40}, not a whole number from {least} to {MOST_PROMPTS}")
    return size


def _stuck(played: _Played, past: Sequence[Sequence[int]]) -> str:
    """Take an episode through its turns, sampled and given alternating; return why it stops, empty: it does not."""
    try:
        for sampled, given in zip(past[0::2], past[1::2], strict=True):
            if reply_to_episode(played.episode, sampled, prompt=played.prompt) != given:
                return "begun anew it answers otherwise than before"
    except TaskFault as fault:
        return _reason(fault)
    return ""


def _reason(fault: TaskFault) -> str:
    """Return a fault's reason, for an answer. One after which this process is of no use is raised: the daemon then ends
    the process."""
    reason = str(fault)[:MOST_REASON_CHARACTERS] or "no reason given"
    if isinstance(fault, TaskBroken) or is_spent(fault):
        raise TaskBroken(reason)
    return reason


def is_spent(error: BaseException | None) -> bool:
    """Tell whether an error, or one that led to it, says that this process is out of memory, threads or files."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SPENT_ERRORS):
            return True
        if isinstance(error, RuntimeError) and error.args == (_NO_THREAD,):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def main() -> None:
    """Serve until the daemon goes away."""
    keep_private()
    pipe = Pipe()
    try:
        unfiltered = apply(msgspec.json.decode(sys.argv[1], type=Limits))
    except NamespaceRefused as missing:
        sys.exit(f"its processes can have no network of their own: {missing}. Set environment.network = true")
    host = EnvironmentHost(unfiltered)
    pipe.serve(
        {
            "open": (OpenTask, host.open),
            "prompt": (AskPrompt, host.prompt),
            "score": (AskScore, host.score),
            "begin": (AskEpisode, host.begin),
            "turn": (AskTurn, host.take_turn),
            "demonstrate": (AskDemonstrations, host.demonstrate),
        }
    )


if __name__ == "__main__":
    main()
