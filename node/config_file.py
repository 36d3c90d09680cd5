"""Write one key of the settings file.

Rules
1. All other lines of the file stay as they are. The new file is whole or absent (runtime/files.py).
2. Nothing is written unless the whole file is valid with the new value, and differs from the old one in this key alone.
3. A variable or a file that cannot be read is named, as at any start.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.config import NodeConfig, check_key, config_path, load_config, values_of
from node.errors import BadConfig
from runtime.files import writing
from runtime.settings import read_toml


def set_key(key: str, text: str | None, environ: Mapping[str, str]) -> NodeConfig:
    """Write a key, or remove it; return the settings then in force. `text`: as a flag or a variable has it; None:
    remove the key. Raises `SettingsFault`, `BadConfig`, `DiskFull`."""
    check_key(key)
    path = config_path(environ)
    try:
        before, source = read_toml(path), path.read_text("utf-8")
    except FileNotFoundError:
        before, source = {}, ""
    value = None if text is None else values_of(key, text)[key]
    load_config({} if value is None else {key: value}, environ)
    after = {name: one for name, one in before.items() if name != key}
    source = _without(key, source, after) if key in before else source
    if value is not None:
        after[key] = value
        source = f"{key} = {_toml(value)}\n{source}"
    if _read(source) != after:
        raise BadConfig(f"{path} cannot be changed by this command: set {key} in it by hand")
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        file.write(source.encode())
    return load_config({}, environ)[0]


def _without(key: str, source: str, rest: Mapping[str, Any]) -> str:
    """Return the text without the lines of a key. `rest`: what it states then."""
    rows = source.splitlines(keepends=True)
    for first, row in enumerate(rows):
        if not re.match(rf"""\s*["']?{key}["']?\s*=""", row):
            continue
        for last in range(first + 1, len(rows) + 1):
            shorter = "".join([*rows[:first], *rows[last:]])
            if _read(shorter) == rest:
                return shorter
    return source


def _read(source: str) -> dict[str, Any] | None:
    """Return what a text states; None: it is no TOML."""
    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError:
        return None


def _toml(value: object) -> str:
    """Return a value of a setting as TOML."""
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
