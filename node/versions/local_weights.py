"""The node's weights: one folder, which the engine steps from version to version.

    weights/held     a folder of weights.logged_weights, loaded by the engine
    weights/made     a folder of weights.journaled, only while it is built from a full payload or a copy of the base

Rules
1. Engines write to `held`, one at a time, or this process in their place (engines/process/engine_fleet.py): never while
   an engine reads it.
2. `made` replaces `held` once the last edge of its chain is applied. A kill leaves either the old or the new folder.
3. A group is generated under one version: an engine changes its own copy in memory only between groups. `held` may be
   at the next version before that. An engine that dies meanwhile loses its groups.
4. Weights and payloads together take at most twice the weights, and three times while weights are made anew: then there
   are `held`, `made`, and the full payload. So payloads, which only other nodes may still need, get what `held` leaves.
   A fold of less than 128 MB of weights takes up to 32 MB beyond that.
5. Where a third of the free memory takes the weights, the present version is there, and a step writes its diff alone
   (weights/logged_weights.py). Else the folder is stepped on disk, and each step writes nearly all of it: the changes
   lie in nearly every page. Start, swap and the end of a pause decide. The end and a pause free the memory. Where
   another process has the folder in memory, or memory fills up meanwhile, the folder is stepped on disk too.
6. The log is folded into the base when it takes two thirds of that, or of what the quota leaves beside it: so folds
   write one and a half times the payloads. It is folded at `MOST_STEPS` diffs too, however small they are: a start and
   the end of a pause decode no more, and open no more files. There it is folded when it has `START_STEPS` diffs, which
   had to be decoded; and before weights are made anew. Never at the end.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from echo2.node.versions.base_copies import BaseCopy
from echo2.p2p.envelope import Verified
from echo2.runtime.memory_folder import MemoryClaim, claim_memory, fits_in_memory, remove_memory_folder
from echo2.weights import logged_weights
from echo2.weights.codec.frames import FRAME_ELEMENTS
from echo2.weights.diff_log import DiffLog, diffs_of
from echo2.weights.documents import Edge, Version
from echo2.weights.errors import BadSnapshot, MemoryFull, WeightsError
from echo2.weights.fold import finish_fold
from echo2.weights.hf_import import import_model
from echo2.weights.journaled import Rolling, finish_replace, remove, replace_folder

LEAST_PAYLOADS: Final = 1 << 20
"""Bytes that payloads may take beside weights of any size."""
START_STEPS: Final = 64
MOST_STEPS: Final = 512
FOLD_FRAME_BYTES: Final = 2 * FRAME_ELEMENTS
"""Bytes that a fold takes beside base and log: a frame of 16-bit weights."""

_log = structlog.get_logger("node")


def free_memory_of_others(run: Path) -> None:
    """Free what killed nodes of this home left in memory for other runs. `run`: folder of the one that is to go on."""
    for folder in run.parent.glob("*/weights/held"):
        if folder.parent.parent != run:
            remove_memory_folder(folder)


class InvalidChain(Exception):
    """Signed edges or their payloads do not produce the roots that the edges name: the publisher's fault."""


class LocalWeights:
    """The two folders of the weights. All methods block; none needs torch."""

    def __init__(self, folder: Path, *, quota: int) -> None:
        """`quota`: bytes that weights and payloads together may take on disk, set by the owner."""
        folder.mkdir(parents=True, exist_ok=True)
        self.quota = quota
        self.path, self._unpacked = folder / "held", folder / "made"
        self.on_damage: Callable[[str], None] = lambda sentence: None
        """Called with a sentence about weights that are damaged, from a thread."""
        self._claim: MemoryClaim | None = None
        self.ends = threading.Event()
        """Set to leave to the next start a fold that is under way, or the present version that is made in memory: that
        raises `weights.errors.Stopped`. A copy of the base is then read no further either."""

    def root(self) -> bytes | None:
        """Return the content root of the weights, None without any. Finish what a kill interrupted; remove damaged or
        incomplete weights."""
        try:
            remove(self._unpacked)
            finish_replace(self.path)
            return self._open()
        except FileNotFoundError:
            return None
        except WeightsError as error:
            reason = str(error)
        _log.warning("weights are fetched again", reason=reason)
        self.on_damage(reason)
        self.drop()  # after the block: its error has a file open, and NFS would keep it
        return None

    def adopt(self, copy: BaseCopy, version: Version) -> None:
        """Make the weights of a copy those in `held`. `version`: any of the run, for its tensors. Raises `BadSnapshot`
        where they are not those of the copy's root any more, `DiskFull`."""

        def write(path: Path) -> bytes:
            written = import_model(copy.folder, path, version.tensors, version.aliases, self.ends.is_set).root
            if written != copy.root:
                raise BadSnapshot(f"{copy.folder} changed while it was read")
            return written

        Rolling.write(self._unpacked, write)
        self.swap_in()

    def _open(self) -> bytes:
        """Bring the present version into memory (rule 5), and fold a long log (rule 6); return its content root."""
        finish_fold(self.path)
        self._choose_place()
        if (diffs := len(self._diffs())) and not logged_weights.is_in_memory(self.path):
            _log.info("weights are made of base and log", diffs=diffs)
        weights = self._open_present()
        self._report_loss(weights.log)
        root = weights.root
        self.fold(START_STEPS)
        return root

    def _open_present(self) -> Rolling:
        try:
            return logged_weights.open_weights(self.path, self.ends.is_set)
        except MemoryFull as fault:
            reason = str(fault)
        self.leave_memory(reason)  # after the block: its error has the log's files open, and NFS would keep them
        return logged_weights.open_weights(self.path)

    def _choose_place(self) -> None:
        """Begin or end a log (rule 5)."""
        if not (self.path / "origin").exists():
            return
        if reason := self._claim_memory():
            self.leave_memory(reason)
        elif not logged_weights.has_log(self.path):
            logged_weights.begin_log(self.path)

    def _claim_memory(self) -> str:
        """Claim the folder in memory (rule 5); return why it cannot be had, empty: it can."""
        if not logged_weights.is_in_memory(self.path) and not fits_in_memory(self._nbytes()):
            return "they exceed a third of the free memory, or half of /dev/shm"
        try:
            self._claim = self._claim or claim_memory(self.path)
        except OSError as error:
            return f"their folder in /dev/shm cannot be made: {error.strerror or error}"
        return "" if self._claim else "another process has their folder in /dev/shm, perhaps in a container"

    def leave_memory(self, reason: str) -> None:
        """Step the weights on disk from now on. `reason`: words for the log. No engine may read the folder. Raises as
        `weights.logged_weights.end_log`."""
        _log.info("weights are stepped on disk", reason=reason)
        self.free_memory()
        if logged_weights.has_log(self.path):
            self._report_loss(logged_weights.end_log(self.path))

    def fold(self, steps: int | None = None) -> None:
        """Fold the log if it is long enough (rule 6), with no engine at the folder. `steps`: diffs that are enough.
        Raises `StoreCorrupt`, `DiskFull`."""
        if not self.is_fold_due(steps):
            return
        try:
            return logged_weights.fold_log(self.path, self.ends.is_set)
        except MemoryFull as fault:
            reason = str(fault)
        self.leave_memory(reason)  # after the block, as in `_open_present`

    def is_fold_due(self, steps: int | None = None) -> bool:
        """Tell whether the log is long enough to be folded (rule 6)."""
        files = self._diffs()
        most = 2 * min(self._nbytes(), max(0, self.quota - self._nbytes())) // 3
        return bool(files) and (sum(files) > most or len(files) >= (steps or MOST_STEPS))

    def _diffs(self) -> list[int]:
        """Return the bytes of each diff in the log."""
        return [path.stat().st_size for path in diffs_of(self.path)]

    def free_memory(self) -> None:
        """Remove the present version from memory; base and log lead to it. No engine may run."""
        if self._claim is None:  # a node that was killed may have left it
            remove_memory_folder(self.path)
        else:
            self._claim.release()
            self._claim = None

    def take_memory(self) -> None:
        """Bring the present version into memory again (rule 5). Damaged weights are for the engine to find."""
        with contextlib.suppress(FileNotFoundError, WeightsError):
            self._open()

    def make(self, chain: Sequence[tuple[Verified[Edge], Path]]) -> None:
        """Build weights within the quota in `made`, from a chain of edges and payloads that begins with a full one.
        Raises `InvalidChain`, `DiskFull`."""
        try:
            full, payload = chain[0]
            unpacked = Rolling.unpack(self._unpacked, payload, full.value.root, max_bytes=self.quota)
            for edge, diff in chain[1:]:
                unpacked.apply(diff, edge.value.root)
        except WeightsError as error:
            raise InvalidChain(f"the payload of a signed edge: {error}") from error

    def swap_in(self) -> None:
        """Replace `held` by `made` (rule 2)."""
        replace_folder(self._unpacked, self.path)
        self.free_memory()
        self.take_memory()

    def drop(self) -> None:
        """Remove the weights in `held`."""
        remove(self.path)
        self.free_memory()

    def room(self) -> int:
        """Return the bytes that the quota and rule 4 leave for payloads beside `held`, and beside a fold that is due;
        below 0 when that exceeds them."""
        nbytes = self._nbytes()
        frame = FOLD_FRAME_BYTES if self.is_fold_due() and nbytes > 4 * FOLD_FRAME_BYTES else 0
        return min(self.quota, nbytes + max(nbytes, LEAST_PAYLOADS)) - self._used_bytes() - frame

    def room_beside_made(self, arriving: int) -> int:
        """Return the bytes left for other payloads while weights are made anew of payloads of which `arriving` bytes
        are yet to come; below 0 as in `room`."""
        nbytes = self._nbytes()
        return min(self.quota, 2 * nbytes + max(nbytes, LEAST_PAYLOADS)) - self._used_bytes() - nbytes - arriving

    def _nbytes(self) -> int:
        """Return the bytes of the snapshot in `held`; 0 without one."""
        path = self.path / "snapshot.safetensors"
        return path.stat().st_size if path.is_file() else 0

    def _used_bytes(self) -> int:
        """Return the bytes of `held`, journals and log included; a diff that is also a stored payload counts there."""
        files = [path.stat() for path in self.path.rglob("*") if path.is_file()]
        return sum(file.st_size for file in files if file.st_nlink == 1)

    def _report_loss(self, log: DiffLog | None) -> None:
        """Report what a damaged log lost."""
        if log is not None and log.loss:
            _log.warning("log of diffs cut", reason=log.loss)
            self.on_damage(log.loss)
