"""Several tasks in one run: the text of `run.task` as tasks with weights. Pure.

Rules
1. ` + ` stands between tasks: `3 add + gym:chain_sum`. A whole number from 1 to `MOST_WEIGHT` and a space may stand
   before a task, else its weight is 1. A weight is the task's share of the prompts, relative to that of the others.
2. A task stands in a mix once. Its name may contain spaces, but not ` + `.
3. `text_of` is the inverse of `parsed`: the same mix has one text.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from echo2.protocol.authority import MOST_WEIGHT, TaskReference
from echo2.runtime.settings import SettingsFault

MIX_SEPARATOR: Final = " + "
MOST_TASKS: Final = 64
"""Tasks of a run; the bound of `RunSpec.tasks`."""
MOST_NAME: Final = 200
"""Characters of a name; the bound of `TaskReference.name`."""


class WeightedTask(NamedTuple):
    """A task of a mix. `name`: name as FAMILY or FAMILY:ARGUMENT."""

    name: str
    weight: int = 1


def parse_mix(text: str) -> list[WeightedTask]:
    """Return the tasks that `run.task` names, in order. Raises `SettingsFault`."""
    tasks = [_weighted_task(part.strip(), text) for part in text.split(MIX_SEPARATOR)]
    if len(tasks) > MOST_TASKS:
        raise SettingsFault(f"run.task names {len(tasks)} tasks, the most is {MOST_TASKS}: leave some out")
    for name, times in Counter(task.name for task in tasks).items():
        if times > 1:
            raise SettingsFault(f"run.task names {name} {times} times: name it once, with the sum of the weights")
    return tasks


def only(text: str) -> str:
    """Return the one task that a text names, without its weight. Raises `SettingsFault` if it names several."""
    tasks = parse_mix(text)
    if len(tasks) > 1:
        raise SettingsFault(f"{text!r} names {len(tasks)} tasks, and one is tried at a time: name one of them")
    return tasks[0].name


def join_mix(texts: Sequence[str]) -> str:
    """Return the text of a mix whose tasks are given one by one, each with a weight or without."""
    return MIX_SEPARATOR.join(texts)


def text_of(tasks: Iterable[TaskReference | WeightedTask]) -> str:
    """Return the text of these tasks (rule 3)."""
    return join_mix([task.name if task.weight == 1 else f"{task.weight} {task.name}" for task in tasks])


def _weighted_task(part: str, text: str) -> WeightedTask:
    first, _, rest = part.partition(" ")
    name, weight = (rest.strip(), _weight(first, rest)) if rest and _is_number(first) else (part, 1)
    if not name:
        raise SettingsFault(f"run.task is {text!r}, and a task is missing: write '3 add + reverse' or the like")
    if len(name) > MOST_NAME:
        raise SettingsFault(f"run.task has a name of {len(name)} characters, the most is {MOST_NAME}")
    return WeightedTask(name, weight)


def _is_number(word: str) -> bool:
    """Tell whether a word is meant as a weight, a good one or not."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def _weight(word: str, name: str) -> int:
    if not (word.isascii() and word.isdecimal() and 1 <= int(word) <= MOST_WEIGHT):
        raise SettingsFault(
            f"run.task gives {name} the weight {word}: write a whole number from 1 to {MOST_WEIGHT}, or leave it out"
        )
    return int(word)
