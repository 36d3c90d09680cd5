"""Weights of which a step writes no more than the diff: the present version in memory, a base and a log on disk.

    FOLDER/                a folder of weights.journaled, the base, which no step writes to
    FOLDER/log/            the diffs since then (weights.diff_log)
    the folder in memory   a folder of weights.journaled at the present version (runtime.memory_folder)

Rules
1. A step is verified and made in memory first, as weights.journaled makes it; then its diff is appended to the log. A
   kill between the two leaves the folder in memory ahead of the log: it is made anew.
2. Where the folder in memory is missing, or at another version than the log's end, it is made from base and log. It
   must then have the root to which the log leads.
3. A folder without a log is stepped on disk, as weights.journaled says. With `begin_log` it gets one, and `end_log`
   takes it away.
4. A fold (weights.fold) that was interrupted is finished first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from echo2.runtime.files import sync_folder
from echo2.runtime.memory_folder import is_private, make_memory_folder, memory_folder, memory_lock
from echo2.weights.diff_log import LOG_FOLDER, DiffLog
from echo2.weights.errors import BadPayload, BadSnapshot, Stopped, StoreCorrupt, WrongBase
from echo2.weights.fold import finish_fold, fold
from echo2.weights.journaled import Rolling, memory_room
from echo2.weights.snapshot import Bits, WeightsSource
from echo2.weights.virtual_snapshot import VirtualSnapshot

_COPY: Final = "weights"
_FILE: Final = "snapshot.safetensors"


def open_weights(folder: Path, stops: Callable[[], bool] = lambda: False) -> Rolling:
    """Open a folder of weights, with or without a log. `stops`: asked for each frame that is made in memory whether to
    raise `Stopped`. Raises `StoreCorrupt`, `BadSnapshot`, `MemoryFull`, `DiskFull`, `FileNotFoundError` where there is
    none."""
    if not has_log(folder):
        return Rolling(folder)
    log = log_of(folder)
    with memory_room():
        copy = make_memory_folder(folder) / _COPY
        with memory_lock(copy.parent):
            if not _is_at(copy, log.root):
                log.check()
                _replay(folder, log, copy, stops)
        return Rolling(copy, log)


def has_log(folder: Path) -> bool:
    """Tell whether a folder of weights has a log."""
    return (folder / LOG_FOLDER).is_dir()


def log_of(folder: Path) -> DiffLog:
    """Open the log of a folder, and nothing in memory. Raises as `open_weights`."""
    finish_fold(folder)
    return DiffLog(folder, Rolling(folder).root)


def present_file(weights: Path) -> Path:
    """Return the file of the present version: of a folder of weights, or of a snapshot file the file itself. Raises
    `FileNotFoundError` where it is to be in memory, and is not, or another user's is in its place."""
    if not weights.is_dir():
        return weights
    if not has_log(weights):
        return weights / _FILE
    if not is_private(place := memory_folder(weights)):
        raise FileNotFoundError(f"{weights} is not in memory")
    return place / _COPY / _FILE


def is_in_memory(folder: Path) -> bool:
    """Tell whether a folder's present version is in memory."""
    place = memory_folder(folder)
    return is_private(place) and (place / _COPY / "origin").exists()


def begin_log(folder: Path) -> None:
    """Give a folder a log (rule 3)."""
    (folder / LOG_FOLDER).mkdir()
    sync_folder(folder)


def end_log(folder: Path) -> DiffLog:
    """Fold a folder's log without a folder in memory, and take it away (rule 3); return it as it was. Raises as
    `open_weights`."""
    log = log_of(folder)
    log.check()
    if log.paths:
        fold(folder, VirtualSnapshot(Rolling(folder).snapshot, log.paths, log.root))
    (folder / LOG_FOLDER).rmdir()
    sync_folder(folder)
    return log


def fold_log(folder: Path, stops: Callable[[], bool] = lambda: False) -> None:
    """Fold a folder's log into its base. `stops`: question of `fold` and `open_weights`. Raises as `open_weights`."""
    fold(folder, open_weights(folder, stops).snapshot, stops)


class _Stoppable:
    """Weights that are read until `stops` says so; then `Stopped` is raised."""

    def __init__(self, weights: WeightsSource, stops: Callable[[], bool]) -> None:
        self.tensors, self.aliases, self.root = weights.tensors, weights.aliases, weights.root
        self._weights, self._stops = weights, stops

    def span(self, start: int, elements: int, width: int) -> Bits:
        if self._stops():
            raise Stopped
        return self._weights.span(start, elements, width)


def _replay(folder: Path, log: DiffLog, copy: Path, stops: Callable[[], bool]) -> None:
    """Make the folder in memory (rule 2)."""
    try:
        present = VirtualSnapshot(Rolling(folder).snapshot, log.paths, log.root)
        Rolling.create(copy, _Stoppable(present, stops))
    except (BadPayload, BadSnapshot, WrongBase) as error:
        raise StoreCorrupt(f"{folder}: its weights are damaged ({error}): they are fetched again") from error


def _is_at(copy: Path, root: bytes) -> bool:
    try:
        return Rolling(copy).root == root
    except (FileNotFoundError, StoreCorrupt):
        return False
