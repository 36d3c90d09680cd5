"""The hidden folder in which `init` builds a run, beside the place where the run will be.

1. `init` locks its draft, and removes it when it ends. An unlocked draft was left by an `init` that was killed.
2. A draft left behind may hold private keys, so only a person removes it; `left_over` names its path. One that is empty
   is removed.
"""

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from echo2.coordinator.database.run_folder import RunFolder
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import sync_folder
from echo2.runtime.lock import AlreadyLocked, Lock, lock_folder

_CONTENT: Final = frozenset({"model", "keys", "root", "run.spec", "coordinator.toml"})


@contextmanager
def drafting(target: Path) -> Iterator[RunFolder]:
    """Yield an empty, locked draft beside `target`, and remove it afterwards. Raises `LocalFault`."""
    place = target.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft, lock = _new_draft(place)
    except OSError as error:
        raise LocalFault(f"cannot write in {place.parent}: {error.strerror}; name another folder") from error
    try:
        yield draft
    finally:
        shutil.rmtree(draft.path, ignore_errors=True)
        lock.release()


def _new_draft(place: Path) -> tuple[RunFolder, Lock]:
    """Make a draft beside `place`, and lock it. Until it is locked another `init` may take it for one left behind, and
    remove it; then make another."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        with suppress(FileNotFoundError):
            lock = _lock_draft(path)
            if lock is not None and path.is_dir():
                return RunFolder(path), lock
            if lock is not None:
                lock.release()


def check_free(target: RunFolder) -> None:
    """Check that a run may be made in `target`. Raises `LocalFault`."""
    if target.config.exists():
        raise LocalFault(f"{target.path} already contains a run, which was not changed: run it, or name another folder")
    try:
        if target.keys.exists():
            raise LocalFault(
                f"{target.path} contains keys and no coordinator.toml: an init was killed there before it made a run. "
                "Remove it, or name another folder; if it is a run that lost its settings, put coordinator.toml back"
            )
        if target.path.exists() and (not target.path.is_dir() or any(target.path.iterdir())):
            raise LocalFault(f"{target.path} is not an empty folder: name a new one")
    except OSError as error:
        raise LocalFault(f"cannot read {target.path}: {error.strerror}; name another folder") from error


def settle(draft: RunFolder, target: RunFolder) -> None:
    """Move a whole run from its draft to its place, its settings last."""
    for folder in (draft.model, draft.roots, draft.keys, draft.path):
        sync_folder(folder)
    if target.path.is_dir():  # empty, and perhaps the operator's working directory: fill it in place
        for path in sorted(draft.path.iterdir(), key=lambda path: path == draft.config):
            path.rename(target.path / path.name)
        sync_folder(target.path)
    else:
        draft.path.rename(target.path)
    sync_folder(target.path.resolve().parent)


def left_over(target: Path) -> list[str]:
    """Return a sentence per draft that a killed `init` of `target` left behind; remove those that are empty."""
    place = target.resolve()
    named = re.compile(rf"\.{re.escape(place.name)}-[a-z0-9_]{{8}}")
    drafts = []
    with suppress(OSError):  # the parent does not exist, or cannot be read
        for path in sorted(place.parent.iterdir()):
            if named.fullmatch(path.name) and path.is_dir() and _is_left_over(path):
                keys = "private keys of a run that was never made" if RunFolder(path).keys.exists() else "no keys yet"
                drafts.append(
                    f"an init of {target} was killed and left {path}, with {keys}: no run needs it, remove it with "
                    f"rm -r {shlex.quote(str(path))}"
                )
    return drafts


def _is_left_over(path: Path) -> bool:
    """Tell whether a draft with something in it was left behind; remove it if it is empty (rule 2)."""
    if not {one.name for one in path.iterdir()} <= _CONTENT:
        return False
    lock = _lock_draft(path)
    if lock is None:
        return False
    with lock:
        with suppress(OSError):  # it is not empty
            path.rmdir()
        return path.is_dir()


def _lock_draft(path: Path) -> Lock | None:
    """Return the folder's lock; None: another process holds it."""
    try:
        return lock_folder(path)
    except AlreadyLocked:
        return None
