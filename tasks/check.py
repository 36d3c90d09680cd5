"""Check a task before a run depends on it: `python -m echo2.tasks.check NAME`.

Each check is a sentence that the task keeps or breaks:

opens              its plug-in can be imported and makes it
prompts            both splits have prompts, and posing one raises nothing
same prompt        two processes, with two hash seeds and in opposite orders, pose the same prompts
separate splits    no prompt is in both splits
same score         the same tokens get the same replies and the same score, in one process twice, in two processes, and
                   beside processes that keep every core busy
finite reward      no error and no reward that is not a finite number, for usual answers
ends               an episode ends, whatever is answered
bounded time       each prompt and each usual answer takes at most `seconds`
fair rewards       the task's own answers succeed; nonsense, a constant and another prompt's answer earn clearly less
hostile answers    in any turn, the completions of tasks/hostile_answers.py cost at most `seconds` and raise nothing

The task runs in processes of its own, with the rights of the user: the kit finds defects, it contains no attacks.
"""

import argparse
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from echo2.runtime.python_command import code_command
from echo2.runtime.usable_cores import usable_cores
from echo2.tasks.check_pay import pay_faults
from echo2.tasks.check_probe import USUAL_ANSWERS, ProbedEpisode, ProbedPrompt, ProbedTask, Question
from echo2.tasks.hostile_answers import HOSTILE
from echo2.tasks.probe_process import ProbeDied, ProbeProcess, ProbeSilent
from echo2.tasks.task import Split

CHECKS: Final = (
    "opens", "prompts", "same prompt", "separate splits", "same score", "finite reward", "ends", "bounded time",
    "fair rewards", "hostile answers",
)  # fmt: skip
SPLITS: Final[tuple[Split, Split]] = ("train", "heldout")
BUSY_PER_CORE: Final = 3
SHOWN_FAULTS: Final = 3
"""Faults of a check that are told one by one."""
_SCORED_PROMPTS: Final = 8
"""Prompts of each split for which answers are scored."""
_HOSTILE_TURNS: Final = 8
"""Turns of an episode in which hostile answers are tried."""


class Fault(NamedTuple):
    """A check that the task does not pass, and why."""

    check: str
    sentence: str


class Extent(NamedTuple):
    """Amount of a check. `prompts`: most of each split. `seconds`: most time of a question. `opening`: most time until
    the task is open. `paid`: most training prompts at which the rewards of right and wrong answers are compared."""

    prompts: int = 500
    seconds: float = 10.0
    opening: float = 300.0
    paid: int = 200


USUAL_EXTENT: Final = Extent()


def check(name: str, extent: Extent = USUAL_EXTENT) -> list[Fault]:
    """Return the faults of a task, at most one for each prompt and check; none: it passes."""
    try:
        with _process(name, extent, 0) as first:
            if first.opened.fault:
                return [Fault("opens", first.opened.fault)]
            sizes: dict[Split, int] = {"train": first.opened.train, "heldout": first.opened.heldout}
            empty = [Fault("prompts", f"the split {split} has no prompts") for split in SPLITS if sizes[split] < 1]
            if empty:
                return empty
            questions = _questions(sizes, extent.prompts)
            one = _ask_all(first, questions)
            again = _ask_all(first, [question for question in questions if question.answers])
        with _process(name, extent, 1) as second:
            other = _ask_all(second, questions[::-1])
            with _busy_cores():
                loaded = _ask_all(second, [question for question in questions if question.answers], 1 + BUSY_PER_CORE)
    except _Stopped as stopped:
        return [stopped.fault]
    except (ProbeSilent, ProbeDied) as error:
        return [Fault("opens", str(error))]
    faults = [*_prompt_faults(one), *_separate(one), *_results(one)]
    if not first.opened.opened:  # else each episode has a prompt of its own
        faults += _same(one, other)
        faults += _same_scores(one, again, "a second time in one process")
        faults += _same_scores(one, other, "in another process under another hash seed")
        faults += _same_scores(other, loaded, "beside busy processes: no reward may depend on a machine's load")
    return faults or [*_fair_rewards(name, extent, sizes["train"]), *_hostile(name, extent, _longest(one))]


class _Stopped(Exception):
    """A process that hung or ended, as a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault


Answers = dict[tuple[Split, int], ProbedPrompt]


def _process(name: str, extent: Extent, hash_seed: int) -> ProbeProcess:
    return ProbeProcess(name, hash_seed=hash_seed, seconds=extent.seconds, opening=extent.opening)


def _questions(sizes: dict[Split, int], most: int) -> list[Question]:
    """Return questions about prompts spread over both splits, the first of each with the usual answers."""
    questions = []
    for split in SPLITS:
        number = min(sizes[split], most)
        for place in range(number):
            answers = list(USUAL_ANSWERS) if place < _SCORED_PROMPTS else []
            questions.append(Question(split, place * sizes[split] // number, answers))
    return questions


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Keep every core busy with `BUSY_PER_CORE` processes."""
    command = code_command("while True: pass")
    busy = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(BUSY_PER_CORE * usable_cores())]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _ask_all(process: ProbeProcess, questions: Sequence[Question], patience: int = 1) -> Answers:
    """Ask all questions. `patience`: factor of the time limit. Raises `_Stopped`."""
    answers: Answers = {}
    for question in questions:
        place = f"{question.split} {question.index}"
        try:
            answers[question.split, question.index] = process.ask(question, patience)
        except ProbeSilent as error:
            raise _Stopped(Fault("bounded time", f"{place}: {error}")) from error
        except ProbeDied as error:
            raise _Stopped(Fault("finite reward" if question.answers else "prompts", f"{place}: {error}")) from error
    return answers


def _prompt_faults(one: Answers) -> Iterator[Fault]:
    for (split, index), played in one.items():
        if played.error:
            yield Fault("prompts", f"{split} {index}: {played.error}")
        elif not played.prompt:
            yield Fault("prompts", f"{split} {index}: the prompt is empty")


def _same(one: Answers, other: Answers) -> Iterator[Fault]:
    for (split, index), played in one.items():
        if played.prompt and other[split, index].digest != played.digest:
            shown = f"{played.prompt[:60]!r} and {other[split, index].prompt[:60]!r}"
            yield Fault("same prompt", f"{split} {index}: {shown} in another process under another hash seed")


def _separate(one: Answers) -> Iterator[Fault]:
    train = {played.digest: index for (split, index), played in one.items() if split == "train" and played.prompt}
    for (split, index), played in one.items():
        if split == "heldout" and played.digest in train:
            yield Fault("separate splits", f"heldout {index} is train {train[played.digest]}: {played.prompt[:60]!r}")


def _each(answers: Answers) -> Iterator[tuple[str, str, ProbedEpisode, tuple[Split, int]]]:
    for key, played in answers.items():
        for name, result in played.results.items():
            yield f"{key[0]} {key[1]}, answered with {name}", name, result, key


def _results(one: Answers) -> Iterator[Fault]:
    for place, _, result, _ in _each(one):
        if result.error:
            yield Fault("finite reward", f"{place}: {result.error}")
        if result.endless:
            yield Fault("ends", f"{place}: the episode does not end")


def _same_scores(one: Answers, other: Answers, where: str) -> Iterator[Fault]:
    for place, name, result, key in _each(other):
        before = one[key].results[name]
        if before != result and not (before.error or result.error):
            scores = f"{before.reward:g} and {result.reward:g}" if before.reward != result.reward else "other replies"
            yield Fault("same score", f"{place}: {scores} {where}")


def _fair_rewards(name: str, extent: Extent, size: int) -> Iterator[Fault]:
    try:
        with _process(name, extent, 0) as process:
            yield from (Fault("fair rewards", sentence) for sentence in pay_faults(process.ask, size, extent.paid))
    except (ProbeSilent, ProbeDied) as error:
        yield Fault("fair rewards", str(error))


def _longest(one: Answers) -> tuple[Question, int]:
    """Return the question, about one usual answer, with the longest episode, and the number of its sampled turns."""
    plays = [
        (len(result.given) + 1, Question(split, index, [name]))
        for (split, index), played in one.items()
        for name, result in played.results.items()
    ]
    length, question = max(plays, key=lambda play: play[0])
    return question, length


def _hostile(name: str, extent: Extent, longest: tuple[Question, int]) -> Iterator[Fault]:
    """Play each hostile answer in each turn of an episode; after one that hangs or kills, in a new process."""
    question, length = longest
    usual = question.answers[0]
    tries = [(answer, at) for at in range(min(length, _HOSTILE_TURNS)) for answer in HOSTILE]
    while tries:
        with _process(name, extent, 0) as process:
            while tries:
                answer, at = tries.pop(0)
                place = f"{answer}{f' in turn {at + 1}' if at else ''}"
                asked = Question(question.split, question.index, [answer], usual=usual, at=at)
                try:
                    result = process.ask(asked).results[answer]
                except (ProbeSilent, ProbeDied) as error:
                    yield Fault("hostile answers", f"{place}: {error}")
                    break
                if result.error or result.endless:
                    yield Fault("hostile answers", f"{place}: {result.error or 'the episode does not end'}"[:400])


def report(name: str, faults: Sequence[Fault]) -> Iterator[str]:
    """Yield a sentence for each check. Checks behind one that stopped the kit are not told as passed."""
    broken = {fault.check for fault in faults}
    for check_name in CHECKS:
        own = [fault for fault in faults if fault.check == check_name]
        if not own and broken & {"opens", "prompts", "bounded time"}:
            continue
        if not own and check_name == "hostile answers" and broken:
            yield f"{check_name}: not tried, as the task fails before"
            continue
        yield f"{check_name}: {'ok' if not own else 'fails'}"
        yield from (f"  {fault.sentence}" for fault in own[:SHOWN_FAULTS])
        if len(own) > SHOWN_FAULTS:
            yield f"  and {len(own) - SHOWN_FAULTS} more"
    yield f"{name} {'passes' if not faults else 'does not pass'}"


@contextmanager
def open_probe(name: str) -> Iterator[tuple[ProbedTask, Callable[[Question], ProbedPrompt]]]:
    """Yield a task's facts, and a function that asks it in a process of its own. Raises `CheckFault`."""
    try:
        with _process(name, USUAL_EXTENT, 0) as process:
            if process.opened.fault:
                raise CheckFault(process.opened.fault)
            yield process.opened, process.ask
    except (ProbeSilent, ProbeDied) as error:
        raise CheckFault(str(error)) from error


class CheckFault(Exception):
    """The task cannot be tried; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a task and print the report; 1: it does not pass."""
    parser = argparse.ArgumentParser(
        prog="python -m echo2.tasks.check",
        description="Check a task before a run uses it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("name", help="as in run.task: NAME or NAME:ARGUMENT")
    parser.add_argument("--prompts", type=int, default=USUAL_EXTENT.prompts, help="most prompts of each split")
    parser.add_argument("--seconds", type=float, default=USUAL_EXTENT.seconds, help="most time of a prompt or a score")
    given = parser.parse_args(arguments)
    if given.prompts < 1 or not 0 < given.seconds < math.inf:
        parser.error("--prompts should be at least 1, and --seconds a number above 0")
    faults = check(given.name, Extent(given.prompts, given.seconds, paid=min(given.prompts, USUAL_EXTENT.paid)))
    print("\n".join(report(given.name, faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
