"""Fields of a row in which problem and answer are, as data sets name them or as the operator says.

Rules
1. Without a word of the operator's the first field of `PROBLEM_FIELDS` and the first of `ANSWER_FIELDS` that a row has
   count, in any letter case. These are the names of verl, TRL, slime, OpenRLHF, open-instruct and usual data sets.
2. `PATH?problem=FIELD&answer=FIELD&where=FIELD=TEXT&ask=TEXT&left_out=SHARE` says them. A field is a name and steps
   from it: `prompt[-1].content`. Values are percent-encoded. `where`, as often as needed, takes rows alone whose field
   is that text. `ask=none` adds no request for a box to the problem.
3. A step into a text that is JSON goes on in its value.
4. A problem is a text or a list of messages, of which those behind the last one of the user are left out. An answer is
   a text, a finite number, or several of them, of which any one is right.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from echo2.tasks.chat import Message
from echo2.tasks.math.data_files import DataFault

PROBLEM_FIELDS: Final = (
    *("problem", "question", "prompt", "query", "input", "instruction"),
    *("messages", "conversations", "conversation"),
)
ANSWER_FIELDS: Final = (
    *("answer", "final_answer", "ground_truth", "expected_answer", "gt_answer", "reward_model.ground_truth"),
    *("label", "target", "solution", "output", "response", "answers"),
)
MOST_TEXT_CHARACTERS: Final = 100_000
"""Most characters of a problem or an answer."""
LEFT_OUT_SHARE: Final = 0.01
"""Most rows that cannot be used, as a share of all, unless the operator says another."""
_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(-?\d{1,6})\]")
_ROLES: Final = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}


class RowFault(ValueError):
    """A row that cannot be used; the message says why."""


class Field(NamedTuple):
    """A field of a row. `steps`: names and positions, from the row on. `exact`: whether letter case counts."""

    text: str
    steps: tuple[str | int, ...]
    exact: bool

    def value(self, row: Any) -> Any:
        for step in self.steps:
            row = _inside(row, step, self.exact)
        return row


class Fields(NamedTuple):
    """Fields of a data set's rows. `problem`, `answer`: the first one that a row has counts. `where`: fields with the
    text that each must have. `ask`: the request behind a problem; None: the task's own, or none behind messages.
    `left_out`: most rows that cannot be used, as a share."""

    problem: tuple[Field, ...]
    answer: tuple[Field, ...]
    where: tuple[tuple[Field, str], ...] = ()
    ask: str | None = None
    left_out: float = LEFT_OUT_SHARE

    def columns(self) -> set[str]:
        """Return the first name of every field, in small letters."""
        fields = [*self.problem, *self.answer, *(field for field, _ in self.where)]
        return {str(field.steps[0]).lower() for field in fields}

    def takes(self, row: Any) -> bool:
        """Tell whether a row is one of those that `where` names."""
        return all(_plain(field.value(row)) == text for field, text in self.where)


def parse_argument(argument: str) -> tuple[Path, Fields]:
    """Return path and fields of `PATH` or `PATH?QUERY` (rule 2). A file whose name holds "?" is taken as it stands.
    Raises `DataFault`."""
    known = Fields(_fields(PROBLEM_FIELDS), _fields(ANSWER_FIELDS))
    path, mark, query = argument.partition("?")
    if not mark or Path(argument).exists():
        return Path(argument), known
    where = list[tuple[Field, str]]()
    for part in query.split("&"):
        key, said, value = part.partition("=")
        value = unquote(value)
        if not said or not value:
            raise DataFault(f"{part!r:.80} in {argument!r:.200} says nothing: write KEY=VALUE")
        if key == "problem":
            known = known._replace(problem=(field_of(value),))
        elif key == "answer":
            known = known._replace(answer=(field_of(value),))
        elif key == "where":
            name, said, text = value.partition("=")
            if not said:
                raise DataFault(f"where={value:.80} names no text: write where=FIELD=TEXT")
            where.append((field_of(name), text))
        elif key == "ask":
            known = known._replace(ask="" if value == "none" else value)
        elif key == "left_out":
            known = known._replace(left_out=_share(value))
        else:
            like = difflib.get_close_matches(key, ("problem", "answer", "where", "ask", "left_out"), 1)
            raise DataFault(
                f"{key!r:.80} is no key of a data set's fields{f': did you mean {like[0]}?' if like else ''}. They are "
                "problem, answer, where, ask and left_out"
            )
    return Path(path), known._replace(where=tuple(where))


def field_of(text: str, *, exact: bool = True) -> Field:
    """Return the field that a text such as `prompt[-1].content` names. Raises `DataFault`."""
    steps, place = list[str | int](), 0
    while place < len(text):
        step = _STEP.match(text, place)
        if step is None or (place == 0 and text[0] == "."):
            raise DataFault(f"{text!r:.80} is no field: write a name and steps from it, as in prompt[-1].content")
        steps.append(int(step[2]) if step[2] else step[1])
        place = step.end()
    return Field(text, tuple(steps), exact)


def problem_of(row: Any, fields: Fields) -> str | tuple[Message, ...]:
    """Return the problem of a row: a text, or messages of which the last one is the user's. Raises `RowFault`."""
    value = _first(row, fields.problem, "problem")
    if isinstance(value, list):
        return _messages(value)
    return _check_text(_number_or_text(value, "problem"), "problem")


def answers_of(row: Any, fields: Fields) -> tuple[str, ...]:
    """Return the answers of a row, at least one, each the end of a solution. Raises `RowFault`."""
    value = _first(row, fields.answer, "answer")
    if isinstance(value, str) and value.startswith('["'):  # as Skywork-OR1 writes its answers
        value = _json_or_text(value)
    several = value if isinstance(value, list) else [value]
    if not several:
        raise RowFault("it has an empty list of answers")
    texts = (final_answer(_check_text(_number_or_text(one, "answer"), "answer")) for one in several)
    return tuple(dict.fromkeys(texts))


def final_answer(solution: str) -> str:
    """Return the answer at the end of a solution: the text after "####" in the form of GSM8K, or the last \\boxed{}."""
    if "####" in solution:
        return solution.rpartition("####")[2].strip() or solution
    start = solution.rfind("\\boxed{")
    if start < 0:
        return solution
    depth = 0
    for place in range(start + len("\\boxed"), len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[place], 0)
        if depth == 0:
            return solution[start + len("\\boxed{") : place].strip() or solution
    return solution


def _fields(names: Iterable[str]) -> tuple[Field, ...]:
    return tuple(field_of(name, exact=False) for name in names)


def _share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise DataFault(f"left_out={value:.40} is no share from 0 to 1")
    return share


def _inside(value: Any, step: str | int, exact: bool) -> Any:
    if isinstance(value, str):
        value = _json_or_text(value)
    if isinstance(step, int):
        return value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
    if not isinstance(value, dict):
        return None
    if exact or step in value:
        return value.get(step)
    return next((inner for key, inner in value.items() if isinstance(key, str) and key.lower() == step), None)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return text


def _first(row: Any, fields: Sequence[Field], what: str) -> Any:
    value = next((value for field in fields if (value := field.value(row)) is not None), None)
    if value is None:
        names = ", ".join(field.text for field in fields)
        keys = ", ".join(str(key) for key in row)[:200] if isinstance(row, dict) else f"no keys: it is {row!r:.40}"
        raise RowFault(f"it has no {what} under {names}; it has {keys or 'no keys'}")
    return value


def _messages(value: list[Any]) -> tuple[Message, ...]:
    messages = list[Message]()
    for one in value:
        role = _ROLES.get(str(one.get("role") or one.get("from"))) if isinstance(one, dict) else None
        if role is None:
            raise RowFault(f"its problem is a list of something else than messages: {one!r:.80}")
        content = _content(one.get("content", one.get("value")))
        messages.append({"role": role, "content": content})  # type: ignore[typeddict-item]  # one of _ROLES' values
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages:
        raise RowFault("its messages have none of the user")
    _check_text("\n".join(message["content"] for message in messages), "problem")
    return tuple(messages)


def _content(content: Any) -> str:
    """Return the text of a message, whose content may come in parts."""
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "\n".join(str(part.get("text")) for part in content)
    if not isinstance(content, str):
        raise RowFault(f"a message of its problem has something else than text: {content!r:.80}")
    return content


def _number_or_text(value: Any, what: str) -> str:
    finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if finite and not isinstance(value, bool):
        return repr(value)
    if not isinstance(value, str):
        raise RowFault(f"its {what} is no text and no finite number: {value!r:.80}")
    return value


def _check_text(text: str, what: str) -> str:
    if not text.strip():
        raise RowFault(f"its {what} is blank")
    if len(text) > MOST_TEXT_CHARACTERS:
        raise RowFault(f"its {what} has {len(text)} characters, and {MOST_TEXT_CHARACTERS} are the most")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowFault(f"its {what} has half of a surrogate pair, which is no character: {error}") from error
    return text.strip()


def _plain(value: Any) -> str | None:
    return value if isinstance(value, str) else None if value is None else json.dumps(value, default=str)
