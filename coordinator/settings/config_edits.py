"""Read and change the settings of a run folder: `echo2-coord config get|diff|set|unset`.

Rules
1. A key that stands in coordinator.toml changes in place, with its comment; a new one is added. All other lines stay as
   they are. The new file is whole or absent (runtime/files.py).
2. Several keys change together or not at all. Nothing is written unless all settings are valid with the new values.
3. A wrong value is blamed on the command, as the file alone was valid; a variable that contradicts it is named.
4. A signed setting binds nodes, and its change is refused: another run has it. A live one counts at once in a
   running coordinator (training/live_settings.py). All others count from the coordinator's next start.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import tomlkit

from echo2.coordinator.settings import config
from echo2.coordinator.settings.config import SIGNED_KEYS, CoordinatorConfig, Settings, sections
from echo2.coordinator.settings.config_section import is_live
from echo2.coordinator.settings.named_home import with_home
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing
from echo2.runtime.settings import DEFAULT_ORIGIN, SettingsFault, means_removal
from echo2.runtime.settings_file import text_of, with_value

SIGNED: Final = frozenset(f"run.{key}" for key in (*SIGNED_KEYS, "kind", "template", "thinking"))
"""Settings that are in the signed RunSpec, or follow from what is."""
LIVE_KEYS: Final = frozenset(
    f"{section}.{name}" for section, model in sections() for name, field in model.model_fields.items() if is_live(field)
)
"""Settings that a running coordinator takes without a new start."""
NEXT_START: Final = "it counts from the coordinator's next start"
_MOST_WORD: Final = 80
"""Most characters of a typed word that a message repeats."""


def list_settings(path: Path, key: str | None, *, origin: bool, env: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Return lines "key = value  # meaning" of the settings in force. `path`: coordinator.toml. `key`: None lists all,
    a section its own. `origin`: show the source of each value in place of its meaning. Raises `SettingsFault`."""
    settings, origins = config.load_with_origins(path, env=env)
    for name, value, _, meaning in _rows(settings, key):
        yield f"{name} = {text_of(value)}  # {f'from {origins[name]}' if origin else meaning}"


def list_differences(path: Path, *, env: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Return lines "key = value  # default ..., from ..." of the settings that differ from their defaults. Raises
    `SettingsFault`."""
    settings, origins = config.load_with_origins(path, env=env)
    for name, value, default, _ in _rows(settings, None):
        if value != default:
            yield f"{name} = {text_of(value)}  # default {text_of(default)}, from {origins[name]}"


def texts(settings: CoordinatorConfig) -> dict[str, str]:
    """Return all settings, by key, as TOML has them."""
    return {name: text_of(value) for name, value, _, _ in _rows(settings, None)}


def with_live(settings: CoordinatorConfig, newer: CoordinatorConfig) -> CoordinatorConfig:
    """Return the settings of a coordinator that takes the live ones of `newer` and keeps its others."""
    updated = {}
    for section, model in sections():
        live = {name: getattr(getattr(newer, section), name) for name in model.model_fields if _is_live(section, name)}
        updated[section] = getattr(settings, section).model_copy(update=live)
    return settings.model_copy(update=updated)


class Edit(NamedTuple):
    """A change of coordinator.toml that is valid, and not written yet. `source`: source text of the new file. `keys`:
    those that it names. `before`, `after`: settings of the file alone. `in_force`: settings with variables and flags.
    `overridden`: key -> what overrides it."""

    path: Path
    source: str
    keys: list[str]
    before: CoordinatorConfig
    after: CoordinatorConfig
    in_force: CoordinatorConfig
    overridden: dict[str, str]

    def write(self) -> None:
        """Write the file. Raises `LocalFault`, `DiskFull`."""
        try:
            with writing(self.path) as file:
                file.write(self.source.encode())
        except OSError as error:
            raise LocalFault(f"cannot write {self.path} ({error.strerror}): nothing is changed") from error

    def sentences(self, when: Callable[[str], str] = lambda key: NEXT_START) -> list[str]:
        """Return what became of each key, for the operator. `when`: says from when on a key counts."""
        old, new = texts(self.before), texts(self.after)
        said = []
        for key in self.keys:
            known = (
                f"{key} = {new[key]}, as before" if old[key] == new[key] else f"{key} = {new[key]}, it was {old[key]}"
            )
            said.append(known if old[key] == new[key] or key in self.overridden else f"{known}: {when(key)}")
            if key in self.overridden:
                said.append(f"in force here is the value from {self.overridden[key]}")
        return said


def prepare(
    path: Path,
    assigned: Sequence[str],
    removed: Sequence[str] = (),
    *,
    env: Mapping[str, str] = os.environ,
    flags: Settings | None = None,
) -> Edit:
    """Return the change of coordinator.toml at `path` that words "section.key=value" and removed keys ask for. `env`,
    `flags`: see `config.load`. Raises `SettingsFault`."""
    before, _ = config.load_with_origins(path, env={})
    values = config.from_assignments([*assigned, *(f"{key}=" for key in removed)])
    keys = [word.partition("=")[0] for word in (*assigned, *removed)]
    for key in keys:
        if key in SIGNED:
            raise SettingsFault(
                f"{key} is signed, and binds nodes: make another run, `echo2-coord init --set {key}=...`"
            )
        if keys.count(key) > 1:
            raise SettingsFault(f"{key} is named {keys.count(key)} times: name it once")
    source = path.read_text("utf-8-sig")
    for key in keys:
        section, _, name = key.partition(".")
        source = with_value(source, [section], name, None if key in removed else values[section][name])
    file, origins = tomlkit.parse(source).unwrap(), config.load_with_origins(path, env=env, flags=flags)[1]
    typed = _command_of(assigned, removed)
    try:
        after = config.parse(file, source=typed)
        in_force = config.parse(file, source=typed, env=env, flags=flags)
    except SettingsFault as error:
        blank = next((key for key, _, text in (word.partition("=") for word in assigned) if means_removal(text)), None)
        if blank is None:
            raise
        unset = with_home(f"echo2-coord config unset {blank}", path.parent)
        raise SettingsFault(f"{error}; `{unset}` removes the setting") from error
    overridden = {key: origins[key] for key in keys if origins[key] not in (path.name, DEFAULT_ORIGIN)}
    return Edit(path, source, keys, before, after, in_force, overridden)


def _command_of(assigned: Sequence[str], removed: Sequence[str]) -> str:
    """Return the command that was typed, for messages; of a long word its begin."""
    words = (word if len(word) <= _MOST_WORD else f"{word[:_MOST_WORD]}..." for word in assigned or removed)
    return f"`echo2-coord config {'set' if assigned else 'unset'} {' '.join(words)}`"


def _is_live(section: str, name: str) -> bool:
    return f"{section}.{name}" in LIVE_KEYS


def _rows(settings: CoordinatorConfig, key: str | None) -> Iterator[tuple[str, Any, Any, str]]:
    """Return (key, value, default, meaning) of each setting, of those of a section, or of one key."""
    if key is not None and key not in dict(sections()):
        config.from_assignments([f"{key}="])  # names the nearest one where there is no such key
    for section, model in sections():
        for name, field in model.model_fields.items():
            if key in (None, section, f"{section}.{name}"):
                value = getattr(getattr(settings, section), name)
                yield f"{section}.{name}", value, field.get_default(call_default_factory=True), field.description or ""
