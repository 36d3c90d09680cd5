"""Check that the disk has room for a run, before its model is made and before its coordinator starts.

A run takes, per trained parameter, the bytes of `RUN_BYTES`, and those of `SCORER_BYTES` for each scorer beyond the
first; docs/run-folder.md says for which files. Files in the
run folder already count as there.
"""

import shutil
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Final

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run.model_folder import SMOLLM2, TINY_MODEL
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.weights.errors import WeightsError
from echo2.weights.hf_import import stored_headers

RUN_BYTES: Final = 36 + 10
"""Bytes of a run per trained parameter: three checkpoints of 12, versions of 2 in store, exports and scorer."""
SCORER_BYTES: Final = 4
"""The same of one more scorer: a copy of the weights, and another while it is made anew."""
SMOLLM2_PARAMETERS: Final = 134_515_008
_GB: Final = 1e9


def check_room_to_make(folder: Path, model: str, scorers: int, *, trains_all: bool) -> None:
    """Check the room for a new run. `model`: tiny, smollm2 or the path of a folder, of which a copy is made.
    `scorers`: their number. `trains_all`: whether all of its weights are trained, not an adapter. Raises `DiskFull`,
    `LocalFault`."""
    if model == TINY_MODEL:
        return
    nbytes, parameters = 2 * SMOLLM2_PARAMETERS, SMOLLM2_PARAMETERS
    if model != SMOLLM2:
        try:
            entries = stored_headers(Path(model))
        except (WeightsError, OSError) as error:
            raise LocalFault(f"{error}: the model's weights cannot be read") from error
        nbytes, parameters = sum(one.nbytes for one in entries), sum(prod(one.shape) for one in entries)
    run = _bytes_per_parameter(scorers) * parameters if trains_all else 0
    _check_free(folder, nbytes + run, "the copy of its model, checkpoints and versions")


def check_room_to_run(place: RunFolder, scorers: int) -> None:
    """Check the room for `bytes_to_run`. Raises `DiskFull`, `LocalFault`."""
    _check_free(place.path, bytes_to_run(place, scorers), "checkpoints and versions")


def bytes_to_run(place: RunFolder, scorers: int) -> int:
    """Return how much a run's checkpoints and versions take beyond their present files. `scorers`: their number. Raises
    `LocalFault`."""
    try:
        parameters = sum(prod(entry.shape) for entry in stored_headers(place.model))
    except (WeightsError, OSError) as error:
        raise LocalFault(f"{error}: put it back from your backup") from error
    present = dict[int, int]()  # by inode: exports are links to the store's files
    for path in (*place.learner.rglob("*"), *place.store.rglob("*"), *place.scorer.glob("[0-9]*/**/*")):
        with suppress(FileNotFoundError):  # a running coordinator removes files
            known = path.stat()
            present[known.st_ino] = known.st_size
    return max(0, _bytes_per_parameter(scorers) * parameters - sum(present.values()))


def _bytes_per_parameter(scorers: int) -> int:
    return RUN_BYTES + SCORER_BYTES * (scorers - 1)


def _check_free(folder: Path, wanted: int, purpose: str) -> None:
    there = next(one for one in (folder.resolve(), *folder.resolve().parents) if one.exists())
    free = shutil.disk_usage(there).free
    if wanted > free:
        raise DiskFull(
            f"the disk of {folder} has {free / _GB:,.1f} GB free, and the run takes {wanted / _GB:,.1f} GB for "
            f"{purpose}: free space there, or name a folder on another disk"
        )
