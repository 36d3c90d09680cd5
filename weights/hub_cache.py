"""Look for a model's folder in a cache of the Hugging Face hub, by the names of its folders. Nothing is fetched.

<cache>/models--ORG--NAME/snapshots/REVISION/   links to the files of one revision
<cache>/models--ORG--NAME/refs/main             the revision that was current when it was fetched
"""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import holds_model

_PREFIX: Final = "models--"
_MOST_NAMED: Final = 6
"""Most models that a message names."""
_LONGEST_REVISION: Final = 256
"""Most bytes that are read of a revision's name."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the cache of this user, by the variables that the hub's library reads."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return Path(environ[name]).expanduser()
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def name_of(folder: Path) -> str:
    """Return the name of a model's folder: ORG/NAME of one in such a cache, else its own."""
    place = folder.resolve()
    repository = place if place.name.startswith(_PREFIX) else place.parent.parent
    if (place == repository or place.parent.name == "snapshots") and repository.name.startswith(_PREFIX):
        return _model_name(repository)
    return place.name


def commit_of(folder: Path) -> str | None:
    """Return the commit of a model's folder in such a cache; None for any other."""
    place = folder.resolve()
    cached = place.parent.name == "snapshots" and place.parent.parent.name.startswith(_PREFIX)
    return place.name if cached and re.fullmatch("[0-9a-f]{40}", place.name) else None


def revisions(cache: Path, model: str = "") -> list[Path]:
    """Return the folders of the revisions in a cache: of the model of this name, first the one that is current; of all
    models if it is empty. `model`: ORG/NAME, NAME, or a revision. A folder that cannot be read counts as empty."""
    return [
        revision
        for repository in _folders(cache)
        if repository.name.startswith(_PREFIX)
        for revision in _revisions(repository)
        if not model or _is_named(repository, model) or revision.name == model
    ]


def model_folders(folder: Path, model: str) -> list[Path]:
    """Return the model's folders that a person means by `folder`: itself, a model in a cache, or a cache. `model`: name
    of the model that is looked for. Raises `BadSnapshot`, whose message says what to type."""
    if not folder.is_dir():
        raise BadSnapshot(f"{folder} {'is a file' if folder.exists() else 'does not exist'}: name a model's folder")
    if holds_model(folder):
        return [folder]
    if (folder / "snapshots").is_dir():
        if folders := _revisions(folder):
            return folders
        raise BadSnapshot(f"{folder} holds no revision of its model: download it again")
    cache = folder / "hub" if (folder / "hub").is_dir() else folder
    models = [one for one in _folders(cache) if one.name.startswith(_PREFIX)]
    if not models:
        raise BadSnapshot(f"{folder} holds no safetensors model: name the folder that has model.safetensors")
    if folders := revisions(cache, model):
        return folders
    names = ", ".join(str(one) for one in models[:_MOST_NAMED])
    more = "" if len(models) <= _MOST_NAMED else f" and {len(models) - _MOST_NAMED} more"
    raise BadSnapshot(f"{folder} is a cache without a model named {model}: name one of {names}{more}")


def _model_name(repository: Path) -> str:
    return repository.name.removeprefix(_PREFIX).replace("--", "/")


def _is_named(repository: Path, model: str) -> bool:
    name = _model_name(repository).lower()
    return model.lower() in (name, name.rpartition("/")[2])


def _revisions(repository: Path) -> list[Path]:
    """Return the revisions of one model, the current one first."""
    current, main = "", repository / "refs" / "main"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if main.is_file():  # a pipe, in a cache that others write to, would never end
            with main.open("rb") as file:
                current = file.read(_LONGEST_REVISION).decode().strip()
    return sorted(_folders(repository / "snapshots"), key=lambda one: (one.name != current, one.name))


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(one for one in place.iterdir() if one.is_dir())
    except OSError:
        return []
