"""The log of a folder of weights: the diffs that lead from its base to its present version.

    log/NUMBER-HASH    a payload; the one after it has the next NUMBER (12 digits). HASH: BLAKE3 of its bytes, hex

Rules
1. A diff is appended once it was verified, by a second name of the payload's file (a copy where the file system has no
   such names). So it is written once, as it was fetched, and stays when the store drops its own name.
2. The log is a chain: each diff starts from the root to which the one before it leads, the first one from the base's.
   What does not continue the chain is cut off when the log is opened, with all that follows it.
3. Before diffs are decoded, their bytes are compared with the hashes in their names, and the log is cut at the first
   that differs. The weights are then those of an earlier version, from which the node goes on.
"""

import errno
from pathlib import Path
from typing import Final

from blake3 import blake3

from echo2.runtime.descriptors import is_shortage
from echo2.runtime.files import link_or_copy, remove_leftover, sync_file, sync_folder
from echo2.weights.errors import WeightsError
from echo2.weights.payload_format import PayloadHeader, PayloadReader, read_header

LOG_FOLDER: Final = "log"
_DIGITS: Final = 12


class DiffLog:
    """`root`: content root to which the diffs lead. `paths`: their files, the oldest first. `loss`: sentence about what
    was cut off; empty: nothing."""

    def __init__(self, folder: Path, base_root: bytes) -> None:
        """Open the log of a folder of weights whose base has `base_root` (rule 2)."""
        self._base_root, self._folder = base_root, folder / LOG_FOLDER
        self.root, self.paths, self.loss = base_root, list[Path](), ""
        for leftover in self._folder.glob(".*"):
            remove_leftover(leftover)
        files = diffs_of(folder)
        for path in files:
            header = header_of(path)
            if header is None or header.base_root != self.root:
                break
            self.root = header.root
            self.paths.append(path)
        self._cut_off(files[len(self.paths) :])

    def append(self, payload: Path, root: bytes) -> None:
        """Append a diff that leads from `self.root` to `root` (rule 1), durably. Raises `DiskFull`."""
        number = int(self.paths[-1].name[:_DIGITS]) + 1 if self.paths else 0
        path = self._folder / f"{number:0{_DIGITS}d}-{_hash_of(payload)}"
        sync_file(payload)
        link_or_copy(payload, path)
        self.paths.append(path)
        self.root = root

    def check(self) -> None:
        """Compare the bytes of the diffs with their hashes, and cut the log where they differ (rule 3)."""
        sound = next((at for at, path in enumerate(self.paths) if not _is_sound(path)), len(self.paths))
        if sound < len(self.paths):
            rest, self.paths = self.paths[sound:], self.paths[:sound]
            header = header_of(self.paths[-1]) if self.paths else None
            self.root = header.root if header is not None else self._base_root
            self._cut_off(rest)

    def _cut_off(self, rest: list[Path]) -> None:
        """Remove files, the last one first: after a kill the others are still a chain."""
        if not rest:
            return
        kept = len(self.paths)
        self.loss = f"{rest[0]} is damaged or cut short: it and what follows are fetched again, {kept} diffs stay"
        empty(rest)


def diffs_of(folder: Path) -> list[Path]:
    """Return the files in the log of a folder of weights, the oldest first."""
    return sorted((folder / LOG_FOLDER).glob("[0-9]*"))


def empty(files: list[Path]) -> None:
    """Remove files of one log, the last one first."""
    for path in reversed(files):
        path.unlink(missing_ok=True)
    if files:
        sync_folder(files[0].parent)


def header_of(path: Path) -> PayloadHeader | None:
    """Return the header of a payload; None: it has none that can be read. Raises `OSError` where this process lacks
    descriptors or memory: the file may be whole."""
    try:
        return read_header(PayloadReader(path))
    except WeightsError:
        return None
    except OSError as error:
        if is_shortage(error) or error.errno == errno.ENOMEM:
            raise
        return None


def _is_sound(path: Path) -> bool:
    return path.name[_DIGITS + 1 :] == _hash_of(path)


def _hash_of(path: Path) -> str:
    return blake3().update_mmap(path).hexdigest()
