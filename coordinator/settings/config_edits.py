"""Read and change the settings of a run folder: `echo2-coord config get|diff|set|unset`.

Rules
1. A key that stands in coordinator.toml changes in place, with its comment; a new one is added. All other lines stay as
   they are. The new file is whole or absent (runtime/files.py).
2. Nothing is written unless all settings are valid with the new value.
3. A signed setting binds nodes, and its change is refused: another run has it. Others count from the coordinator's
   next start.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import tomlkit

from echo2.coordinator.settings import config
from echo2.coordinator.settings.config import SIGNED_KEYS, CoordinatorConfig, sections
from echo2.runtime.files import writing
from echo2.runtime.settings import DEFAULT_ORIGIN, SettingsFault

SIGNED: Final = frozenset(f"run.{key}" for key in (*SIGNED_KEYS, "kind", "template", "thinking"))
"""Settings that are in the signed RunSpec, or follow from what is."""


def list_settings(path: Path, key: str | None, *, origin: bool, env: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Return lines "key = value  # meaning" of the settings in force. `path`: coordinator.toml. `key`: None lists all.
    `origin`: show the source of each value in place of its meaning. Raises `SettingsFault`."""
    settings, origins = config.load_with_origins(path, env=env)
    for name, value, _, meaning in _rows(settings, key):
        yield f"{name} = {_text(value)}  # {f'from {origins[name]}' if origin else meaning}"


def list_differences(path: Path, *, env: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Return lines "key = value  # default ..., from ..." of the settings that differ from their defaults. Raises
    `SettingsFault`."""
    settings, origins = config.load_with_origins(path, env=env)
    for name, value, default, _ in _rows(settings, None):
        if value != default:
            yield f"{name} = {_text(value)}  # default {_text(default)}, from {origins[name]}"


def change(path: Path, key: str, text: str | None, *, env: Mapping[str, str] = os.environ) -> list[str]:
    """Write a key of coordinator.toml at `path`, or remove it; return what became of it, for the operator. `text`: text
    as a variable has it; None: remove the key. Raises `SettingsFault`, `DiskFull`."""
    before, _ = config.load_with_origins(path, env={})
    values = config.from_assignments([f"{key}={'' if text is None else text}"])
    ((section, ((name, value),)),) = ((one, tuple(inner.items())) for one, inner in values.items())
    if key in SIGNED:
        raise SettingsFault(f"{key} is signed, and binds nodes: make another run, `echo2-coord init --set {key}=...`")
    source = _with_key(path.read_text("utf-8-sig"), section, name, None if text is None else value)
    after = config.parse(tomlkit.parse(source).unwrap(), source=path.name)
    with writing(path) as file:
        file.write(source.encode())
    _, origins = config.load_with_origins(path, env=env)
    old, new = (getattr(getattr(one, section), name) for one in (before, after))
    said = [f"{key} = {_text(new)}, it was {_text(old)}: it counts from the coordinator's next start"]
    if origins[key] not in (path.name, DEFAULT_ORIGIN):
        said.append(f"in force here is the value from {origins[key]}")
    return said


def _rows(settings: CoordinatorConfig, key: str | None) -> Iterator[tuple[str, Any, Any, str]]:
    """Return (key, value, default, meaning) of each setting."""
    if key is not None:
        config.from_assignments([f"{key}="])  # names the nearest one where there is no such key
    for section, model in sections():
        for name, field in model.model_fields.items():
            if key in (None, f"{section}.{name}"):
                value = getattr(getattr(settings, section), name)
                yield f"{section}.{name}", value, field.get_default(call_default_factory=True), field.description or ""


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    return str(tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string())


def _with_key(source: str, section: str, name: str, value: Any) -> str:
    """Return a text of TOML with another value of a key; None: without the key."""
    document = tomlkit.parse(source)
    if value is None:
        document.get(section, {}).pop(name, None)
    else:
        document.setdefault(section, tomlkit.table())[name] = list(value) if isinstance(value, tuple) else value
    return tomlkit.dumps(document)
