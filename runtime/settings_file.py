"""Settings as their file has them: the text of a value, and a file with another value of a key. All other lines stay as
they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from pydantic import BaseModel


def text_of(value: Any) -> str:
    """Return a value as TOML has it; "unset" for None."""
    return "unset" if value is None else str(tomlkit.item(_plain(value)).as_string())


def with_value(source: str, tables: Sequence[str], name: str, value: Any) -> str:
    """Return a text of TOML with another value of a key; None: without the key. `tables`: tables that it lies in, from
    the outermost on."""
    document: Any = tomlkit.parse(source)
    inner = document
    for table in tables:
        if value is None and table not in inner:
            return source
        inner = inner.setdefault(table, tomlkit.table(is_super_table=inner is document and len(tables) > 1))
    if value is None:
        inner.pop(name, None)
    else:
        inner[name] = _plain(value)
    return tomlkit.dumps(document)


def _plain(value: Any) -> Any:
    """Return a value of TOML's kinds: lists in place of tuples, texts in place of paths, tables in one line."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        table.update({name: _plain(one) for name, one in value.items()})
        return table
    return str(value) if isinstance(value, Path) else value
