"""The process in which tasks/check.py tries a task: it answers questions on its standard input, one a line.

Run as `python -m tasks.check_probe NAME`. The first line that it writes has the task's facts (`ProbedTask`). A question
is (split, index, names of answers); an answer line has the prompt and a result for each of those (`ProbedPrompt`). Text
that the task prints goes to standard error.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tasks import plugins
from tasks.code_points import CodePoints
from tasks.hostile_answers import HOSTILE
from tasks.task import InvalidTranscript, Split, Task, TaskFault, Transcript, begun, prompt_of, replay

DEMONSTRATION: Final = "its own demonstration"
PROMPT: Final = "the prompt again"
USUAL: Final[Mapping[str, str]] = {DEMONSTRATION: "", PROMPT: "", "42": "42", "a word": "perhaps", "no answer": ""}
"""Answers that every task meets. The texts of the first two depend on the prompt."""
MOST_TURNS: Final = 64
_LIMIT: Final = 1 << 30


class ProbedTask(msgspec.Struct, frozen=True):
    """`fault`: why the task cannot be opened; empty: it is open."""

    version: int = 0
    train: int = 0
    heldout: int = 0
    fault: str = ""


class Question(msgspec.Struct, frozen=True):
    """`answers`: names in `USUAL` or `HOSTILE`, or with `said` True the answers themselves. `whole`: the results have
    the whole texts of prompts and answers."""

    split: Split
    index: int
    answers: list[str] = []
    said: bool = False
    whole: bool = False


class ProbedEpisode(msgspec.Struct, frozen=True):
    """The end of one episode, in which each turn says `answer`. `given`: the environment's replies. `error`: of the
    task's code. `endless`: it did not end within `MOST_TURNS` turns."""

    answer: str
    reward: float = 0.0
    success: bool = False
    given: tuple[str, ...] = ()
    error: str = ""
    endless: bool = False


class ProbedPrompt(msgspec.Struct, frozen=True):
    """`prompt`: its text. `digest`: of its tokens. `results`: by the name of the answer."""

    prompt: str = ""
    digest: str = ""
    results: dict[str, ProbedEpisode] = {}
    error: str = ""


TEXT = CodePoints()


def ask(task: Task, question: Question) -> ProbedPrompt:
    """Pose a prompt, and play an episode for each answer. Errors of the task are in the result."""
    try:
        tokens = prompt_of(task, question.split, question.index, TEXT)
    except TaskFault as fault:
        return ProbedPrompt(error=str(fault))
    prompt = TEXT.decode(tokens)
    results = {name: play(task, question, said_as(task, question, name, prompt)) for name in question.answers}
    return ProbedPrompt(prompt, hashlib.blake2b(repr(tokens).encode(), digest_size=16).hexdigest(), results)


def said_as(task: Task, question: Question, name: str, prompt: str) -> str | None:
    """Return the text of an answer by its name; None: the task gives no demonstration."""
    if question.said:
        return name
    if name == DEMONSTRATION:
        try:
            return TEXT.decode(list(task.demonstration(question.split, question.index, TEXT, 0, 0.0)))
        except NotImplementedError:
            return None
    return prompt if name == PROMPT else {**USUAL, **HOSTILE}[name]


def play(task: Task, question: Question, answer: str | None) -> ProbedEpisode:
    """Play an episode whose every turn says the same, then replay and score it as the coordinator does."""
    if answer is None:
        return ProbedEpisode("")
    sampled = [*TEXT.encode(answer), TEXT.eos]
    tokens: list[int] = []
    turns: list[int] = []
    given: list[str] = []
    try:
        episode = begun(task, question.split, question.index, TEXT)
        for _ in range(MOST_TURNS):
            tokens, turns = [*tokens, *sampled], [*turns, len(sampled)]
            reply = episode.reply(list(sampled))
            if reply is None:
                fresh = begun(task, question.split, question.index, TEXT)
                score = replay(fresh, Transcript(tokens, turns), eos=TEXT.eos, limit=_LIMIT)
                return ProbedEpisode(answer, score.reward, score.success, tuple(given))
            tokens, turns, given = [*tokens, *reply], [*turns, len(reply)], [*given, TEXT.decode(list(reply))]
    except TaskFault as fault:
        return ProbedEpisode(answer, error=str(fault))
    except InvalidTranscript as error:
        return ProbedEpisode(answer, error=f"a second episode went another course: {error}")
    except (Exception, SystemExit) as error:
        return ProbedEpisode(answer, error=f"reply raised {type(error).__name__}: {error}")
    return ProbedEpisode(answer, endless=True)


def main(arguments: Sequence[str]) -> None:
    """Open the task and answer questions until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        task = plugins.find(arguments[0])
        opened = ProbedTask(task.version, task.size("train"), task.size("heldout"))
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
