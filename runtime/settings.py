"""Read settings into one frozen model. A flag overrides an environment variable, a variable overrides the file, and the
file overrides the default.

Rules
1. The model is flat, or has sections that are flat, or tables: such sections under names of the owner's. A key is
   written "name", "section.name" or "table.NAME.name". A variable has a whole table.
2. A file is TOML. A variable's name is a prefix and the key in capitals, with "_" for the dot. Its value is TOML; for a
   text also the plain text, and for a list of texts also words separated by commas or spaces. An empty one is not set.
3. An unknown key, in the file or under the prefix, is an error that names the nearest known one.
4. Every error is one line: the value's source, the key, and the expected value.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from echo2.runtime.errors import LocalFault

M = TypeVar("M", bound=BaseModel)
Values = Mapping[str, Any]
"""Values as the model has them: by name, or by section and name."""
FLAG: Final = "command line"
MOST_LISTED: Final = 24
"""Known words that the sentence about an unknown one lists."""
DEFAULT_ORIGIN: Final = "default"
_WANTED_KINDS: Final = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "too_short": "a longer list",
    "too_long": "a shorter list",
    "missing": "a longer list",
    "finite_number": "a finite number",
}
"""pydantic's type of error -> the expected value in plain words, where pydantic's own words are for programmers."""
_WITH_UNIT: Final = re.compile(r"[\d.,]+ ?[A-Za-z%]+(/s)?")
"""A number with a unit, as in 2GB."""
_REMOVAL_WORDS: Final = frozenset(("", "unset", "none", "null", "default"))


class SettingsFault(LocalFault):
    """A setting that a person must put right; the message names it and the expected value."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, unchecked. Raises `SettingsFault`, FileNotFoundError."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin a file with a mark
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SettingsFault(f"cannot read {path} ({error.strerror}): put its path or its permissions right") from error
    except UnicodeDecodeError as error:
        raise SettingsFault(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # besides what is no TOML, numbers and lists beyond Python's
        raise SettingsFault(f"{path} is not TOML: {error}") from error


def means_removal(text: str) -> bool:
    """Tell whether a text that a setting refused was meant to remove it: it is blank, or a word such as none."""
    return text.strip(" \t\"'").lower() in _REMOVAL_WORDS


def did_you_mean(word: str, known: Mapping[str, object], first: list[str] | None = None) -> str:
    """Return the end of a sentence about an unknown word: the nearest known one. `first`: better candidates, if any."""
    nearest = (first or []) or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if nearest:
        return f"; did you mean {nearest[0]}?"
    return f"; known are {', '.join(known)}" if len(known) <= MOST_LISTED else "; no name here is like it: remove it"


class Loader(Generic[M]):
    """The loader of one model. `prefix`: that of its variables. `is_foreign`: tells whether a variable with the prefix
    is no setting. `removed`: keys of earlier commits, each with the reason why it is gone."""

    def __init__(
        self, model: type[M], prefix: str, is_foreign: Callable[[str], bool], removed: Mapping[str, str] | None = None
    ) -> None:
        self._model, self._prefix, self._is_foreign, self._removed = model, prefix, is_foreign, removed or {}
        self.sections = {name: kind for name, field in model.model_fields.items() if (kind := _section(field))}
        self.tables = {name: kind for name, field in model.model_fields.items() if (kind := _table(field))}
        self.keys = dict(_keys(model, self.sections))

    def variable(self, key: str) -> str:
        """Return the name of a key's variable."""
        return f"{self._prefix}{key}".replace(".", "_").upper()

    def load(self, file: Values, *, source: str, env: Mapping[str, str], flags: Values) -> tuple[M, dict[str, str]]:
        """Return the settings, and where the value of each key comes from. `source`: the file's name, for messages.
        Raises `SettingsFault`."""
        variables = self.from_env(env)
        origins = dict.fromkeys(self.keys, DEFAULT_ORIGIN)
        merged: dict[str, Any] = {}
        for values, origin in ((file, lambda key: source), (variables, self.variable), (flags, lambda key: FLAG)):
            merge(merged, values)
            origins |= {key: origin(key) for key in self.keys if holds(values, key)}
            origins |= {key: origin(key.partition(".")[0]) for key in self._table_keys(values)}
        try:
            return self._model.model_validate(merged), origins
        except ValidationError as error:
            first = error.errors()[0]
            place = self._cut([str(part) for part in first["loc"]])
            raise SettingsFault(f"{origins.get('.'.join(place), source)}: {self._sentence(first, place)}") from error

    def from_env(self, env: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings among the variables. Raises `SettingsFault` for an unknown one with the prefix."""
        known = {self.variable(key): key for key in self.keys}
        removed = {self.variable(key): key for key in self._removed}
        values: dict[str, Any] = {}
        for name, text in sorted(env.items()):
            if not name.startswith(self._prefix) or self._is_foreign(name):
                continue
            if not text.strip():  # as an empty variable of a unit file or of docker means: it is not set
                continue
            if name in removed:
                raise SettingsFault(self.unknown(removed[name].split(".")))
            if name not in known:
                raise SettingsFault(f"unknown environment variable {name}{did_you_mean(name, known)}")
            merge(values, self.from_text(known[name], text))
        return values

    def from_text(self, key: str, text: str) -> dict[str, Any]:
        """Return the values that one key's text stands for (rule 2). Raises `SettingsFault` for an unknown key."""
        value: Any = _value(text, self.field(key))
        for part in reversed(key.split(".")):
            value = {part: value}
        return value  # type: ignore[no-any-return]

    def field(self, key: str) -> FieldInfo:
        """Return the field of a key. Raises `SettingsFault` for an unknown one."""
        place = key.split(".")
        table = self.tables.get(place[0]) if len(place) == 3 else None
        field = self.keys.get(key) if table is None else table.model_fields.get(place[2])
        if field is None:
            raise SettingsFault(self.unknown(place if place[0] in self.sections | self.tables else place[:1]))
        return field

    def _table_keys(self, values: Values) -> list[str]:
        """Return the keys within tables that have a value here."""
        tables = [(name, values[name]) for name in self.tables if isinstance(values.get(name), Mapping)]
        return [
            f"{table}.{name}.{key}"
            for table, named in tables
            for name, inner in named.items()
            for key in (inner if isinstance(inner, Mapping) else ())
        ]

    def unknown(self, place: list[str]) -> str:
        """Return the sentence about an unknown section or key."""
        if (reason := self._removed.get(".".join(place))) is not None:
            return f"{'.'.join(place)} is no longer a setting, as {reason}: remove it"
        word = place[-1]
        homes = [key for key in self.keys if "." in key and key.partition(".")[2] == word]
        if len(place) == 1:
            kind = "section or key" if self.sections else "key"
            return f"unknown {kind} {word}{did_you_mean(word, self._model.model_fields, homes)}"
        own = (self.sections | self.tables)[place[0]].model_fields
        outer = ".".join(place[: 2 if place[0] in self.tables else 1])
        near = [f"{outer}.{name}" for name in difflib.get_close_matches(word, own, n=1, cutoff=0.6)]
        return f"unknown key {'.'.join(place)}{did_you_mean(word, own, homes or near)}"

    def _cut(self, place: list[str]) -> list[str]:
        """Return the part of a place that is a key: behind it come numbers of a list."""
        first = place[0] if place else ""
        return place[: 3 if first in self.tables else 2 if first in self.sections else 1]

    def _sentence(self, error: ErrorDetails, place: list[str]) -> str:
        key = ".".join(place)
        if error["type"] == "extra_forbidden":
            return self.unknown(place)
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] == "value_error":
            return f"{key}: {message}" if key else message
        if error["type"] in ("model_type", "model_attributes_type"):
            return f"[{key}] should be a section of settings, not {error['input']!r}"
        wanted = _WANTED_KINDS.get(error["type"]) or re.sub(r"^(Input|Value|String|List) should (be )?", "", message)
        if error["type"] == "string_pattern_mismatch":
            wanted = f"like {' or '.join(map(str, self.field(key).examples or ['its description']))}"
        if wanted.endswith("number") and _WITH_UNIT.fullmatch(str(error["input"])):
            wanted += " without a unit"
        given = list(error["input"]) if isinstance(error["input"], tuple) else error["input"]
        return f"{key} should {wanted if wanted.startswith(('have', 'match')) else f'be {wanted}'}, not {_short(given)}"


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _table(field: FieldInfo) -> type[BaseModel] | None:
    kind = get_args(field.annotation)[-1] if get_origin(field.annotation) is dict else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _keys(model: type[BaseModel], sections: Mapping[str, type[BaseModel]]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if name in sections:
            yield from ((f"{name}.{key}", inner) for key, inner in sections[name].model_fields.items())
        else:
            yield name, field


def merge(into: dict[str, Any], values: Values) -> None:
    """Override the existing values by `values`, section by section."""
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.setdefault(name, {}), dict):
            merge(into[name], value)
        elif not isinstance(value, Mapping):
            into[name] = value


def holds(values: Values, key: str) -> bool:
    """Tell whether a key has a value here."""
    inner: Any = values
    for part in key.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return False
        inner = inner[part]
    return True


def _value(text: str, field: FieldInfo) -> object:
    """Return a TOML value; a text as it is, or in double quotes as in the file; a list also as words."""
    kind, parts = get_origin(field.annotation), get_args(field.annotation)
    is_text = field.annotation in (str, Path) or kind is Literal or (kind in (Union, UnionType) and str in parts)
    if is_text and not text.startswith('"'):
        return text
    try:
        (value,) = tomllib.loads(f"value = {text}").values()  # lines behind it are no part of a value
        return value
    except (ValueError, RecursionError):
        return re.findall(r"[^\s,]+", text) if parts[-1:] == (...,) else text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
