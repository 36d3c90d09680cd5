"""The process in which tasks/check.py tries a task: it answers questions on its standard input, one a line.

Run as `python -m echo2.tasks.check_probe NAME`. The first line that it writes has the task's facts (`ProbedTask`).
A question is (split, index, names of answers); an answer line has the prompt and a result for each of those
(`ProbedPrompt`). Text that the task prints goes to standard error.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from echo2.tasks import plugins
from echo2.tasks.byte_text import ByteText
from echo2.tasks.hostile_answers import HOSTILE
from echo2.tasks.task import (
    Episode,
    InvalidTranscript,
    Split,
    Task,
    TaskFault,
    Transcript,
    begin_episode,
    leave_episode,
    opens,
    prompt_of,
    ready_task,
    remarks_of,
    replay,
    reply_to_episode,
    score_episode,
    whole_prompt,
)

DEMONSTRATION: Final = "its own demonstration"
PROMPT: Final = "the prompt again"
DEMONSTRATIONS: Final = "another demonstration in each turn"
MIXED_ANSWERS: Final = "another answer in each turn"
USUAL_ANSWERS: Final[Mapping[str, str]] = {
    DEMONSTRATION: "", DEMONSTRATIONS: "", PROMPT: "", MIXED_ANSWERS: "", "42": "42", "a word": "perhaps",
    "no answer": "",
}  # fmt: skip
"""Answers that every task meets. The texts of the first four depend on the prompt or the turn. A task of one turn does
not tell some of them apart."""
MOST_TURNS: Final = 64
_TOKEN_LIMIT: Final = 1 << 30


class ProbedTask(msgspec.Struct, frozen=True):
    """`fault`: why the task cannot be opened; empty: it is open. `opened`: its samples have prompts of their own.
    `remarks`: its sentences for the operator."""

    version: int = 0
    train: int = 0
    heldout: int = 0
    fault: str = ""
    opened: bool = False
    remarks: list[str] = []


class Question(msgspec.Struct, frozen=True):
    """`answers`: names in `USUAL_ANSWERS` or `HOSTILE`, or with `said` True the answers themselves. `whole`: the
    results have the whole texts of prompts and answers. `usual`: the answer's name for all turns but the turn `at`,
    from 0; empty: an answer is given in all turns."""

    split: Split
    index: int
    answers: list[str] = []
    said: bool = False
    whole: bool = False
    usual: str = ""
    at: int = 0


class ProbedEpisode(msgspec.Struct, frozen=True):
    """The end of one episode. `answer`: answer of its first turn, which the others say too unless the answer's name
    tells another. `given`: the environment's replies. `error`: error of the task's code. `endless`: it did not end
    within `MOST_TURNS` turns."""

    answer: str
    reward: float = 0.0
    success: bool = False
    given: tuple[str, ...] = ()
    error: str = ""
    endless: bool = False


class ProbedPrompt(msgspec.Struct, frozen=True):
    """`prompt`: its text. `digest`: digest of its tokens. `results`: results by the name of the answer."""

    prompt: str = ""
    digest: str = ""
    results: dict[str, ProbedEpisode] = {}
    error: str = ""


TEXT = ByteText()


def ask(task: Task, question: Question) -> ProbedPrompt:
    """Pose a prompt, and play an episode for each answer. Errors of the task are in the result."""
    try:
        tokens = whole_prompt(task, question.split, question.index, TEXT)
    except TaskFault as fault:
        return ProbedPrompt(error=str(fault))
    prompt = TEXT.decode(tokens)
    results = {name: play(task, question, _script(task, question, name, prompt)) for name in question.answers}
    return ProbedPrompt(prompt, hashlib.blake2b(repr(tokens).encode(), digest_size=16).hexdigest(), results)


Script = Callable[[int], str]
"""Number of a sampled turn, from 0 -> its text. Raises NotImplementedError where the task gives no demonstration."""


def _script(task: Task, question: Question, name: str, prompt: str) -> Script:
    """Return what an answer says in each turn."""
    said = _said_as(task, question, name, prompt)
    if not question.usual:
        return said
    usual = _said_as(task, question, question.usual, prompt)
    return lambda turn_number: (said if turn_number == question.at else usual)(turn_number)


def _said_as(task: Task, question: Question, name: str, prompt: str) -> Script:
    def demonstration(seed: int) -> str:
        return TEXT.decode(list(task.demonstration(question.split, question.index, TEXT, seed, 0.0)))

    mixed = (demonstration, lambda _: "perhaps", lambda _: prompt, demonstration, lambda _: "")
    named: dict[str, Script] = {
        DEMONSTRATION: lambda _: demonstration(0),
        DEMONSTRATIONS: demonstration,
        MIXED_ANSWERS: lambda turn_number: mixed[turn_number % len(mixed)](turn_number),
        PROMPT: lambda _: prompt,
    }
    if question.said:
        return lambda _: name
    return named.get(name, lambda _: {**USUAL_ANSWERS, **HOSTILE}[name])


def play(task: Task, question: Question, script: Script) -> ProbedEpisode:
    """Play an episode, then replay and score it as the coordinator does. One that its task opens goes a course of its
    own, so it is scored itself."""
    answer = ""
    tokens: list[int] = []
    turns: list[int] = []
    given: list[str] = []
    episodes: list[Episode] = []

    def begin() -> Episode:
        episodes.append(begin_episode(task, question.split, question.index, TEXT))
        return episodes[-1]

    try:
        answer = script(0)
        episode = begin()
        if opens(task):
            reply_to_episode(episode, [], prompt=prompt_of(task, question.split, question.index, TEXT))
        for turn_number in range(MOST_TURNS):
            sampled = [*TEXT.encode(script(turn_number)), TEXT.eos]
            tokens += sampled
            turns.append(len(sampled))
            reply = episode.reply(list(sampled))
            if reply is None:
                transcript = Transcript(tokens, turns)
                score = (
                    score_episode(episode)
                    if opens(task)
                    else replay(begin(), transcript, ends=TEXT.ends, limit=_TOKEN_LIMIT)
                )
                return ProbedEpisode(answer, score.reward, score.success, tuple(given))
            tokens += reply
            turns.append(len(reply))
            given.append(TEXT.decode(list(reply)))
    except NotImplementedError:
        return ProbedEpisode("")
    except TaskFault as fault:
        return ProbedEpisode(answer, error=str(fault))
    except InvalidTranscript as error:
        return ProbedEpisode(answer, error=f"a second episode went another course: {error}")
    except (Exception, SystemExit) as error:
        return ProbedEpisode(answer, error=f"a turn raised {type(error).__name__}: {error}")
    finally:
        for one in episodes:
            leave_episode(one)
    return ProbedEpisode(answer, endless=True)


def main(arguments: Sequence[str]) -> None:
    """Open the task and answer questions until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        task = plugins.find(arguments[0])
        train, heldout = task.size("train"), task.size("heldout")
        opened = ProbedTask(task.version, train, heldout, opened=opens(task), remarks=remarks_of(task))
        ready_task(task, TEXT)
    except (Exception, SystemExit) as error:
        own = isinstance(error, LookupError)
        opened = ProbedTask(fault=str(error) if own else f"size raised {type(error).__name__}: {error}")
    answers.write(msgspec.json.encode(opened) + b"\n")
    answers.flush()
    for asked in sys.stdin.buffer:
        question = msgspec.json.decode(asked, type=Question)
        played = ask(task, question)
        answers.write(msgspec.json.encode(_short(played, question.whole)) + b"\n")
        answers.flush()


def _short(played: ProbedPrompt, whole: bool) -> ProbedPrompt:
    """Leave out the texts that only a person would read."""
    if whole:
        return played
    results = {
        name: msgspec.structs.replace(result, answer=result.answer[:200] if name == DEMONSTRATION else "")
        for name, result in played.results.items()
    }
    return msgspec.structs.replace(played, prompt=played.prompt[:2000], results=results)


if __name__ == "__main__":
    main(sys.argv[1:])
