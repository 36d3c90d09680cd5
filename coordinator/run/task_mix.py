"""Several tasks in one run: the text of `run.task` as tasks with weights.

Rules
1. ` + ` stands between tasks: `3 add + gym:chain_sum`. A whole number from 1 to `MOST_WEIGHT` and a space may stand
   before a task, else its weight is 1. A weight is the task's share of the prompts, relative to that of the others.
2. A task stands in a mix once. Its name may contain spaces; one that contains ` + ` stands in double quotes.
3. `text_of` is the inverse of `parse_mix`: the same mix has one text.
4. `join_mix` and `only`, for options of the command line, put a name in quotes whose path exists as it stands.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final, NamedTuple

from echo2.protocol.authority import MOST_WEIGHT, TaskReference
from echo2.runtime.settings import SettingsFault

MIX_SEPARATOR: Final = " + "
_SEPARATOR: Final = re.compile(r' \+ (?=(?:[^"]*"[^"]*")*[^"]*$)')
"""A separator outside of quotes: an even number of them follows."""
_FAMILY: Final = re.compile(r"[\w-]+(:|$)")
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
    tasks = [_weighted_task(part.strip(), text) for part in _SEPARATOR.split(text)]
    if len(tasks) > MOST_TASKS:
        raise SettingsFault(f"run.task names {len(tasks)} tasks, the most is {MOST_TASKS}: leave some out")
    for name, times in Counter(task.name for task in tasks).items():
        if times > 1:
            raise SettingsFault(f"run.task names {name} {times} times: name it once, with the sum of the weights")
    return tasks


def only(text: str) -> str:
    """Return the one task that a text names, without its weight. Raises `SettingsFault` if it names several."""
    tasks = parse_mix(_quote_path(text))
    if len(tasks) > 1:
        raise SettingsFault(f"{text!r} names {len(tasks)} tasks, and one is tried at a time: name one of them")
    return tasks[0].name


def join_mix(texts: Sequence[str]) -> str:
    """Return the text of a mix whose tasks are given one by one, each with a weight or without."""
    return MIX_SEPARATOR.join(map(_quote_path, texts))


def text_of(tasks: Iterable[TaskReference | WeightedTask]) -> str:
    """Return the text of these tasks (rule 3)."""
    named = [(f'"{task.name}"' if MIX_SEPARATOR in task.name else task.name, task.weight) for task in tasks]
    return MIX_SEPARATOR.join(name if weight == 1 else f"{weight} {name}" for name, weight in named)


def shares_of(tasks: Sequence[TaskReference | WeightedTask]) -> dict[str, Fraction]:
    """Return the share of the prompts of each task, by name."""
    total = sum(task.weight for task in tasks)
    return {task.name: Fraction(task.weight, total) for task in tasks}


def _quote_path(text: str) -> str:
    """Return a text of the command line with a name in quotes whose path exists (rule 4)."""
    place = text.partition(":")[2]
    exists = MIX_SEPARATOR in place and any(Path(path).exists() for path in (place, place.partition("?")[0]))
    if not exists:
        return text
    weight, _, name = text.partition(" ")
    return f'{weight} "{name}"' if _is_number(weight) else f'"{text}"'


def _weighted_task(part: str, text: str) -> WeightedTask:
    first, _, rest = part.partition(" ")
    name, weight = (rest.strip(), _weight(first, rest)) if rest and _is_number(first) else (part, 1)
    if not name:
        raise SettingsFault(f"run.task is {text!r}, and a task is missing: write '3 add + reverse' or the like")
    name = name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name
    if part != text.strip() and not _FAMILY.match(name):
        raise SettingsFault(
            f"run.task is {text!r}, and {name!r} is no task: put a name that contains {MIX_SEPARATOR!r} in double "
            "quotes"
        )
    if not name.isprintable():
        raise SettingsFault(f"run.task has a name with a character that cannot be printed: {name!r:.200}")
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
