"""The TOML file of a run on a taskset of verifiers: `run.task = "verifiers:/PATH/NAME.toml"`.

python = "/srv/verifiers/bin/python"   # that has verifiers; unset: this one, or that of `make verifiers`
path = ["/srv/tasksets"]               # folders with tasksets that are no installed packages
rows = 4096                            # most rows taken, for tasksets without end
opened = false                         # true where the prompts of a row's samples differ
success = 1.0                          # least reward of an episode that counts as solved
seconds = 8.0                          # most of one answer: at least 2 s less than [environment] seconds
[env]                                  # verifiers' own settings
taskset = {id = "my-taskset"}
[renderer]                             # one of verifiers' renderers; unset: the run's own template
name = "qwen3"
"""

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from echo2.runtime.installation import command_adding

VERSION: Final = "0.4.0"
"""The version of verifiers with which the bridge works."""
OF_A_CHECKOUT: Final = Path(__file__).resolve().parents[2] / ".venv-verifiers/bin/python"
"""The Python that `make verifiers` makes."""


class TasksetFault(ValueError):
    """A file, or a taskset, that cannot be used; the message says why."""


class TasksetFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. Times in seconds."""

    env: dict[str, Any]
    python: str = ""
    path: list[str] = []
    rows: int = 4096
    opened: bool = False
    success: float = 1.0
    seconds: float = 8.0
    renderer: dict[str, Any] | None = None


def usual_python() -> Path:
    """Return the Python that a file means which names none: this one where the extra verifiers is installed, else that
    of a checkout."""
    return Path(sys.executable) if importlib.util.find_spec("verifiers") is not None else OF_A_CHECKOUT


def read(argument: str) -> TasksetFile:
    """Read the file at an absolute path. Raises `TasksetFault`."""
    path = Path(argument)
    if not argument:
        raise TasksetFault("name the absolute path of a TOML file behind a colon, as in verifiers:/srv/mine.toml")
    if not path.is_absolute():
        raise TasksetFault(
            f"name the absolute path of a TOML file: the task's process works in a folder of its own, so {argument!r} "
            "is not there"
        )
    try:
        told = msgspec.convert(tomllib.loads(path.read_text()), TasksetFile)
    except OSError as error:
        raise TasksetFault(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TasksetFault(f"{path} cannot be used: {error}") from error
    python = told.python or str(usual_python())
    if not Path(python).is_file():
        raise TasksetFault(
            f"there is no Python with verifiers at {python}: {command_adding('verifiers')}, or name one in {path} "
            "(python = ...)"
        )
    folders = [path.parent / folder for folder in told.path]
    for folder in folders:
        if not folder.is_dir():
            raise TasksetFault(f"there is no folder {folder}, which {path} names as a path of tasksets: correct path")
    return msgspec.structs.replace(told, python=python, path=[str(folder) for folder in folders])


def files(argument: str) -> list[str]:
    """Return the folders that a taskset needs: those that it names, and its Python with what that was made from. Raises
    `TasksetFault`."""
    told = read(argument)
    python = Path(told.python)
    return [*told.path, str(python.parent.parent), *(str(one.parent.parent) for one in _links(python))]


def _links(path: Path) -> Iterator[Path]:
    """Yield what a link leads to, one step after another."""
    while path.is_symlink():
        path = path.parent / path.readlink()
        yield path
