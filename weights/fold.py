"""Fold the log of a folder of weights into its base, within the room that both take already.

    folding                the content root that the base will have, hex: the fold is decided
    folded.safetensors     the new base; it has room for all frames from the start, and disk space for those written

Rules
1. The frames are written from the last to the first. Once one is durable in the new file, the old one is cut off where
   that frame begins. So both together take the bytes of one, and of one frame (weights.codec.frames).
2. Before the new file takes the old one's place, its bytes must have the root; then `origin` names that, and the log is
   emptied. `folding` goes last.
3. A kill, or a failure of power, at any moment leaves what the next process finishes: frames that the new file lacks
   are decoded from the old one, by the log. It finishes the fold before it does anything else with the folder.
4. Nothing else reads the base, or changes the folder, meanwhile.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from echo2.runtime.files import hidden_path, move, room, sync_folder, writing
from echo2.weights.diff_log import diffs_of, empty, header_of
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import StoreCorrupt, WeightsError
from echo2.weights.payload_format import frames_of
from echo2.weights.snapshot import BITS, Bits, Snapshot, WeightsSource
from echo2.weights.virtual_snapshot import VirtualSnapshot

_MARK: Final = "folding"
_NEW: Final = "folded.safetensors"
_BASE: Final = "snapshot.safetensors"


def fold(folder: Path, present: WeightsSource, stops: Callable[[], bool] = lambda: False) -> None:
    """Replace the base by the weights to which the log leads, and empty the log. `present`: these weights. `stops`:
    asked after each frame whether to leave the rest to the next start. Raises `DiskFull`, `StoreCorrupt`."""
    base, new = folder / _BASE, folder / _NEW
    header = Snapshot(base, root=b"").start
    with room(new), base.open("rb") as old, new.open("wb") as file:
        file.write(old.read(header))
        file.truncate(base.stat().st_size)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    with writing(folder / _MARK) as mark:
        mark.write(present.root.hex().encode())
    if _write_frames(folder, present, stops):
        _take_place(folder, present.root)


def finish_fold(folder: Path) -> None:
    """Finish a fold that a kill interrupted (rule 3). Raises `StoreCorrupt` where that cannot be, `DiskFull`."""
    mark, new = folder / _MARK, folder / _NEW
    hidden_path(mark).unlink(missing_ok=True)
    if not mark.exists():
        new.unlink(missing_ok=True)
        return
    try:
        root = bytes.fromhex(mark.read_text())
        if new.exists():
            _write_frames(folder, _rest(folder, root), lambda: False)
        _take_place(folder, root)
    except (WeightsError, ValueError) as error:
        raise StoreCorrupt(f"{folder}: its log cannot be folded ({error}): the weights are fetched again") from error


class _CutBase:
    """What is left of an old base: its frames before the cut, and their table."""

    def __init__(self, folder: Path, root: bytes) -> None:
        new = Snapshot(folder / _NEW, root=root)
        self.tensors: list[TensorEntry] = new.tensors
        self.aliases, self.root, self._start = new.aliases, root, new.start
        self._bytes = np.memmap(folder / _BASE, np.uint8, "r")

    def span(self, start: int, elements: int, width: int) -> Bits:
        at = self._start + start
        return np.asarray(self._bytes[at : at + elements * width]).view(BITS[width])


def _rest(folder: Path, root: bytes) -> VirtualSnapshot:
    """Return the weights to which the log leads, by what is left of the base. Raises `WeightsError`."""
    payloads = diffs_of(folder)
    first = header_of(payloads[0]) if payloads else None
    if first is None or first.base_root is None:
        raise StoreCorrupt("its first diff is missing")
    return VirtualSnapshot(_CutBase(folder, first.base_root), payloads, root)


def _write_frames(folder: Path, source: WeightsSource, stops: Callable[[], bool]) -> bool:
    """Write the frames that the new file lacks (rule 1); return whether it has all of them."""
    base, new = folder / _BASE, folder / _NEW
    header = Snapshot(new, root=b"").start
    descriptor = os.open(new, os.O_WRONLY)
    try:
        for frame in reversed(list(frames_of(source.tensors))):
            at = header + frame.start
            if at >= base.stat().st_size:
                continue
            if stops():
                return False
            bits = np.ascontiguousarray(source.span(frame.start, frame.elements, frame.width))
            view = memoryview(bits.view(np.uint8).data)
            with room(new):
                while view:
                    written = os.pwrite(descriptor, view, at)
                    view, at = view[written:], at + written
                os.fsync(descriptor)
            os.truncate(base, header + frame.start)
    finally:
        os.close(descriptor)
    return True


def _take_place(folder: Path, root: bytes) -> None:
    """Put the new file into the base's place (rule 2). Raises `StoreCorrupt`."""
    base, new = folder / _BASE, folder / _NEW
    if new.exists():
        if Snapshot(new).root != root:
            raise StoreCorrupt(f"its bytes would not have root {root.hex()[:16]}")
        move(new, base)
    with writing(folder / "origin") as file:
        file.write(root.hex().encode())
    empty(sorted((folder / "undo").glob("[0-9]*")))
    empty(diffs_of(folder))
    (folder / _MARK).unlink()
    sync_folder(folder)
