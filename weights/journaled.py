"""Step a snapshot from version to version in place; undo and redo the last steps. One process at a time.

    snapshot.safetensors   the weights, memory-mapped
    forward, back          the journal of a step under way: at most one of the two exists
    undo/N                 journals of the last steps, the newest with the highest N
    redo/N                 journals of steps that were undone, the one undone last with the lowest N
    origin                 content root of the present version where `undo` is empty, in hex

`apply` is safe against a kill, or a failure of power, at any moment:

1. Nothing is written before the payload has decoded purely, over the old weights, to weights of the expected root.
2. All changes (positions, old bits, new bits) are then written to a journal, which is hashed, fsynced and renamed to
   `forward`. That rename decides: before it, the old version is whole; after it, the next process that opens the folder
   finishes the step.
3. The new bits are written into the mapped file, which is then fsynced. Writing them twice does no harm.
4. The journal is renamed to `undo/N`: the step is done.

A step back is rules 2 to 4 with the old bits: `undo/N` becomes `back`, then `redo/N`. Redoing that step is rules 3 and
4: `redo/N` becomes `forward`, and no payload is needed. A step by a payload deletes the undone steps in `redo` before
its journal is renamed to `forward`.

Memory beyond model and payload: see `weights.codec.frames`, per thread. Readers of the mapped file must be excluded
during a step: they would see it half applied. A copy in a model gets the same lists of changes (`last_changes`), not
the payload again.

A folder built from a full payload (`unpack`) stays beside the old one until it has reached its last version. Then
`replace_folder` renames it, and that rename decides. A process that opens the folder after `finish_replace` finds
either the old weights or the new ones.
"""

import contextlib
import itertools
import mmap
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from echo2.runtime.errors import DiskFull
from echo2.runtime.files import NO_ROOM, hidden_path, move, sync_file, sync_folder, writing
from echo2.weights import diff
from echo2.weights.codec.frames import Bits
from echo2.weights.diff import Change, by_tensor, open_payload, patches
from echo2.weights.diff_log import DiffLog
from echo2.weights.errors import BadPayload, BadSnapshot, MemoryFull, StoreCorrupt, WrongBase
from echo2.weights.payload_format import Frame, PayloadReader, frames_of
from echo2.weights.snapshot import BITS, RootHasher, Snapshot, WeightsSource
from echo2.weights.virtual_snapshot import write_out

_MAGIC: Final = b"echo2JN1"
_RECORD: Final = struct.Struct("<QII")
"""Byte in the snapshot's data, element width, changes; then positions (u32), old bits, new bits."""
_HASH: Final = 32


class _Record(msgspec.Struct, frozen=True):
    """Changes of a frame. `start`: byte of its first element in the snapshot's data."""

    start: int
    index: NDArray[np.uint32]
    old: Bits
    new: Bits


class _Journal:
    """A whole journal, read and checked: base root, root, records. Raises `StoreCorrupt`."""

    def __init__(self, path: Path) -> None:
        self.base_root, self.root = _ends(path)
        with path.open("rb") as file:
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        body = self._data[:-_HASH]
        if len(body) < 72 or blake3(body).digest() != self._data[-_HASH:]:
            raise _damage_error(path)

    def records(self) -> Iterator[_Record]:
        at, end = 72, len(self._data) - _HASH
        while at < end:
            start, width, count = _RECORD.unpack_from(self._data, at)
            at += _RECORD.size
            index = np.frombuffer(self._data, np.uint32, count, at)
            old = np.frombuffer(self._data, BITS[width], count, at + 4 * count)
            new = np.frombuffer(self._data, BITS[width], count, at + (4 + width) * count)
            at += (4 + 2 * width) * count
            yield _Record(start, index, old, new)


class Rolling:
    """A folder whose snapshot is stepped in place: `with Rolling(folder) as rolling`. `create` or `unpack` makes the
    folder. Methods may raise `DiskFull`, and `StoreCorrupt` where a journal is damaged."""

    def __init__(self, folder: Path, log: DiffLog | None = None) -> None:
        """Open, and finish a step that a kill interrupted. `log`: log that gets the diff of each step, and makes the
        folder go forward only. Raises `StoreCorrupt`, `BadSnapshot`, `FileNotFoundError` where there is none."""
        self.folder, self.log = folder, log
        self._origin = bytes.fromhex((folder / "origin").read_text())
        (folder / "redo").mkdir(exist_ok=True)
        self.path = folder / "snapshot.safetensors"
        for leftover in (hidden_path(folder / "forward"), hidden_path(folder / "origin")):
            leftover.unlink(missing_ok=True)
        if (folder / "forward").exists():
            self._finish_forward()
        if (folder / "back").exists():
            self._finish_back()

    @classmethod
    def create(cls, folder: Path, source: WeightsSource) -> Self:
        """Write weights into a folder, in place of any earlier content. Raises as `write_out` does."""
        _clear_journal(folder)
        write_out(source, folder / "snapshot.safetensors")
        return cls._begin(folder, source.root)

    @classmethod
    def unpack(cls, folder: Path, payload: Path, root: bytes, *, max_bytes: int = diff.MAX_SNAPSHOT) -> Self:
        """Write the weights of a full payload into a folder, in place of any earlier content. Raises as `diff.apply`
        does."""

        def write(path: Path) -> bytes:
            diff.apply(None, payload, path, root, max_bytes=max_bytes)
            return root

        return cls.write(folder, write)

    @classmethod
    def write(cls, folder: Path, write: Callable[[Path], bytes]) -> Self:
        """Make a folder in place of any earlier content. `write`: writes the snapshot, and returns its content root."""
        _clear_journal(folder)
        return cls._begin(folder, write(folder / "snapshot.safetensors"))

    @classmethod
    def _begin(cls, folder: Path, root: bytes) -> Self:
        with writing(folder / "origin") as file:
            file.write(root.hex().encode())
        sync_folder(folder)
        return cls(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: no file is open between calls."""

    @property
    def root(self) -> bytes:
        """Content root of the present version."""
        undo = self._journals("undo")
        return _Journal(undo[-1]).root if undo else self._origin

    @property
    def snapshot(self) -> Snapshot:
        """The present version, to read until the next step."""
        return Snapshot(self.path, root=self.root)

    def behind(self) -> list[bytes]:
        """Return the content roots to which `back` leads, the nearest first."""
        return [_ends(path)[0] for path in reversed(self._journals("undo"))]

    def ahead(self) -> list[bytes]:
        """Return the content roots to which `redo` leads, the nearest first."""
        return [_ends(path)[1] for path in self._journals("redo")]

    def apply(
        self,
        payload: Path,
        expect_root: bytes,
        *,
        keep: int = 0,
        threads: int | None = None,
    ) -> None:
        """Step forward by a diff; `back` can then undo `keep` steps, at least this one. `expect_root`: the same as in
        `diff.apply`. Raises `BadPayload`, `WrongBase`, `MemoryFull` where there is a log, and `BadSnapshot` where the
        diff changes which tensors are tied (write a new file with `diff.apply` then)."""
        with memory_room() if self.log is not None else contextlib.nullcontext():
            self._step(payload, expect_root, keep, threads)
        if self.log is not None:
            self.log.append(payload, expect_root)

    def _step(self, payload: Path, expect_root: bytes, keep: int, threads: int | None) -> None:
        base, reader = self.snapshot, PayloadReader(payload)
        table = open_payload(reader, base, expect_root)
        if table.aliases != base.aliases:
            raise BadSnapshot(
                f"{self.path}: a diff that changes tied tensors cannot be applied in place: write a new file"
            )
        hasher = RootHasher(table.tensors, table.aliases)
        with _writing_journal(self.folder / "forward", base.root, expect_root) as journal:
            for frame, patch in patches(reader, base, table.tensors, threads):
                old = base.span(frame.start, frame.elements, frame.width)
                for piece in patch.pieces(old):
                    hasher.write(piece)
                index, new = patch.changes(old)
                journal.add(_Record(frame.start, index, old[index], new))
            if hasher.finish() != expect_root:
                raise BadPayload("payload decodes to weights of another root than it claims")
            self._forget_undone()
        self._finish_forward()
        # The newest always stays: it names the present root.
        for path in self._journals("undo")[: -max(1, keep)]:
            path.unlink()

    def last_changes(self, *, back: bool = False) -> Iterator[Change]:
        """Return the changes of the last step forward, by tensor, with the bits that it wrote; with `back`, those of
        the last step back. Raises `WrongBase` where no such step is kept."""
        journals = self._journals("redo")[:1] if back else self._journals("undo")[-1:]
        if not journals:
            raise WrongBase("no such step is kept")
        frames = {frame.start: frame for frame in frames_of(self.snapshot.tensors)}
        for record in _Journal(journals[0]).records():
            yield from by_tensor(frames[record.start], record.index, record.old if back else record.new)

    def changes_since(self, root: bytes) -> Iterator[Iterator[Change]]:
        """Return the changes of each kept step forward from the version of content root `root` to the present one, as
        `last_changes` does. Raises `WrongBase` where they are not all kept."""
        undo = self._journals("undo")
        bases = [_ends(path)[0] for path in undo]
        if root not in bases:
            raise WrongBase(f"no kept step leads from {root.hex()[:16]}: load the weights anew")
        frames = {frame.start: frame for frame in frames_of(self.snapshot.tensors)}
        return (_forward(path, frames) for path in undo[bases.index(root) :])

    def back(self) -> bytes:
        """Step back; return the content root that is now present. Raises `WrongBase` where no step is kept."""
        undo = self._journals("undo")
        if not undo or self.log is not None:
            raise WrongBase("no step is kept that could be undone")
        move(undo[-1], self.folder / "back")
        sync_folder(self.folder / "undo")
        self._finish_back()
        return self.root

    def redo(self) -> bytes:
        """Redo the step that was undone last; return the content root that is now present. Raises `WrongBase` where
        none was undone."""
        redo = self._journals("redo")
        if not redo or self.log is not None:
            raise WrongBase("no undone step is kept that could be redone")
        if _ends(redo[0])[0] != self.root:
            raise _damage_error(redo[0])
        move(redo[0], self.folder / "forward")
        sync_folder(self.folder / "redo")
        self._finish_forward()
        return self.root

    def _finish_forward(self) -> None:
        forward, undo = self.folder / "forward", self._journals("undo")
        journal = _Journal(forward)
        self._scatter((record.start, record.index, record.new) for record in journal.records())
        move(forward, _journal_file(self.folder / "undo", _number(undo[-1]) + 1 if undo else 0))
        sync_folder(self.folder)

    def _finish_back(self) -> None:
        back, undo, redo = self.folder / "back", self._journals("undo"), self._journals("redo")
        journal = _Journal(back)
        self._scatter((record.start, record.index, record.old) for record in journal.records())
        if not undo:
            with writing(self.folder / "origin") as file:
                file.write(journal.base_root.hex().encode())
            self._origin = journal.base_root
        # A step keeps its place among those undone, all of which were made after it.
        place = _number(undo[-1]) + 1 if undo else _number(redo[0]) - 1 if redo else 0
        move(back, _journal_file(self.folder / "redo", place))
        sync_folder(self.folder)

    def _forget_undone(self) -> None:
        # The farthest first: after a kill at any point, the rest still begins at the present version.
        for path in reversed(self._journals("redo")):
            path.unlink()
        sync_folder(self.folder / "redo")

    def _scatter(self, changes: Iterator[tuple[int, NDArray[np.uint32], Bits]]) -> None:
        """Write bits into the mapped file, and fsync it (rule 3)."""
        start = Snapshot(self.path, root=b"").start
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            whole = np.frombuffer(mapped, np.uint8)
            for at, index, bits in changes:
                if len(index):
                    end = start + at + (int(index[-1]) + 1) * bits.itemsize
                    whole[start + at : end].view(bits.dtype)[index] = bits
            del whole
            mapped.flush()
        sync_file(self.path)

    def _journals(self, of: str) -> list[Path]:
        """Return the journals in folder `of`, the oldest step first."""
        return sorted((self.folder / of).glob("[0-9]*"))


@contextlib.contextmanager
def memory_room() -> Iterator[None]:
    """Translate "no room" of a folder in the machine's memory into `MemoryFull`."""
    try:
        yield
    except DiskFull as error:
        raise MemoryFull(str(error)) from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise MemoryFull(f"no room in the machine's memory ({error.strerror})") from error
        raise


def replace_folder(new: Path, place: Path) -> None:
    """Put the folder `new`, which is whole, in the place of another. Both have one parent."""
    finish_replace(place)
    new.rename(_next(place))
    finish_replace(place)


def finish_replace(place: Path) -> None:
    """Finish a `replace_folder` that a kill interrupted."""
    if _next(place).exists():
        if place.exists():  # NFS keeps an older folder while a process has a file of it open
            names = (place.with_name(f"{place.name}.retired-{number}") for number in itertools.count(1))
            place.rename(next(name for name in names if not name.exists()))
        _next(place).rename(place)
        sync_folder(place.parent)
    for retired in place.parent.glob(f"{place.name}.retired*"):
        shutil.rmtree(retired, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a folder. `origin` goes first: a folder without it, as a kill may leave, is never opened."""
    (folder / "origin").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _forward(journal: Path, frames: Mapping[int, Frame]) -> Iterator[Change]:
    for record in _Journal(journal).records():
        yield from by_tensor(frames[record.start], record.index, record.new)


def _next(place: Path) -> Path:
    return place.with_name(f"{place.name}.next")


def _ends(journal: Path) -> tuple[bytes, bytes]:
    """Read (base root, root) alone."""
    with journal.open("rb") as file:
        head = file.read(72)
    if len(head) < 72 or head[:8] != _MAGIC:
        raise _damage_error(journal)
    return head[8:40], head[40:72]


def _damage_error(journal: Path) -> StoreCorrupt:
    return StoreCorrupt(f"{journal} is damaged: remove its folder, and the weights are fetched again")


def _journal_file(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}"


def _number(journal: Path) -> int:
    return int(journal.name)


def _clear_journal(folder: Path) -> None:
    """Make an empty folder with `undo` and `redo`. The caller writes `origin` last."""
    remove(folder)
    for name in ("undo", "redo"):
        (folder / name).mkdir(parents=True)


class _JournalWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hasher = file, blake3()

    def add(self, record: _Record) -> None:
        if len(record.index):
            self.write(_RECORD.pack(record.start, record.new.itemsize, len(record.index)))
            for part in (record.index, record.old, record.new):
                self.write(np.ascontiguousarray(part).view(np.uint8).data)

    def write(self, data: Any) -> None:
        self._file.write(data)
        self._hasher.update(data)

    def finish(self) -> None:
        self._file.write(self._hasher.digest())


@contextlib.contextmanager
def _writing_journal(path: Path, base_root: bytes, root: bytes) -> Iterator[_JournalWriter]:
    with writing(path) as file:
        journal = _JournalWriter(file)
        journal.write(_MAGIC + base_root + root)
        yield journal
        journal.finish()
