"""The hidden folder in which `init` builds a run, beside the place where the run will be.

1. A draft is removed when `init` ends, unless it is killed. It is locked meanwhile: what is not locked is left over.
2. What is left over may hold private keys, so nothing removes it but a person: `left_over` says where it is.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from coordinator.run.run_folder import RunFolder
from runtime.errors import LocalFault
from runtime.lock import AlreadyLocked, Lock, lock_folder

_CONTENT: Final = frozenset({"model", "keys", "root", "run.spec", "coordinator.toml"})


@contextmanager
def drafting(target: Path) -> Iterator[RunFolder]:
    """The draft of a run that will be at `target`. Raises `LocalFault` where it cannot be made."""
    place = target.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = RunFolder(Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent)))
    except OSError as error:
        raise LocalFault(f"cannot write in {place.parent}: {error.strerror}; name another folder") from error
    lock = _locked(draft.path)
    try:
        yield draft
    finally:
        shutil.rmtree(draft.path, ignore_errors=True)
        if lock is not None:
            lock.release()


def left_over(target: Path) -> list[str]:
    """A sentence for each draft that an `init` of `target` left when it was killed."""
    place = target.resolve()
    named = re.compile(rf"\.{re.escape(place.name)}-[a-z0-9_]{{8}}")
    drafts = []
    with suppress(OSError):  # a parent that is not there, or not to be read
        for path in sorted(place.parent.iterdir()):
            if named.fullmatch(path.name) and path.is_dir() and _is_left_over(path):
                keys = "private keys of a run that was never made" if RunFolder(path).keys.exists() else "no keys yet"
                drafts.append(
                    f"an init of {target} was killed and left {path}, with {keys}: no run needs it, remove it with "
                    f"rm -r '{path}'"
                )
    return drafts


def _is_left_over(path: Path) -> bool:
    if not {one.name for one in path.iterdir()} <= _CONTENT:
        return False
    lock = _locked(path)
    if lock is not None:
        lock.release()
    return lock is not None


def _locked(path: Path) -> Lock | None:
    """The folder's lock; None: another process holds it."""
    try:
        return lock_folder(path)
    except AlreadyLocked:
        return None
