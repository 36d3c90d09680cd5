"""Write one snapshot file by several processes, none of which has all of it.

Rules
1. One process begins the file: a hidden one beside its place, of its full length, with the header. Then each process
   writes its rows of the tensors at their places, and makes them durable. Rows in sequence are one range of bytes.
2. Once all have, the bytes of each tensor are hashed, by any process that sees the file. The first process computes the
   root from these hashes and moves the file to its place. So it is visible whole, or not at all.
3. All processes see one file: one host, or a folder that their hosts share.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from echo2.runtime.files import hidden_path, move, room
from echo2.weights import safetensors_header
from echo2.weights.documents import TensorEntry, check_table
from echo2.weights.errors import BadPayload, BadSnapshot
from echo2.weights.snapshot import Bits, Snapshot, header_metadata, root_of, tensor_hash


def begin(path: Path, tensors: Sequence[TensorEntry], aliases: dict[str, str]) -> Path:
    """Begin the snapshot `path`; return the hidden file (rule 1). `tensors`: ascending by name. Raises `BadSnapshot`,
    `DiskFull`."""
    try:
        check_table(list(tensors), aliases)
    except BadPayload as error:
        raise BadSnapshot(str(error)) from error
    partial = hidden_path(path)
    with room(partial), partial.open("wb") as file:
        header = safetensors_header.build(list(tensors), header_metadata(aliases))
        file.write(header)
        file.truncate(len(header) + sum(entry.nbytes for entry in tensors))
    return partial


class RowWriter:
    """Writes rows into a snapshot that was begun; durable when the block ends without an error."""

    def __init__(self, partial: Path) -> None:
        self._snapshot, self._partial = Snapshot(partial), partial
        self._entries = {entry.name: entry for entry in self._snapshot.tensors}
        self._starts: dict[str, int] = {}
        at = self._snapshot.start
        for entry in self._snapshot.tensors:
            self._starts[entry.name] = at
            at += entry.nbytes

    def __enter__(self) -> Self:
        self._file = os.open(self._partial, os.O_WRONLY)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                with room(self._partial):
                    os.fsync(self._file)
        finally:
            os.close(self._file)

    @property
    def names(self) -> list[str]:
        """The names of the stored tensors."""
        return list(self._entries)

    def write(self, name: str, row: int, bits: Bits) -> None:
        """Write rows of a tensor from `row` on. Raises `BadSnapshot` for rows that it does not have, `DiskFull`."""
        entry = self._entries[name]
        first = row * (entry.nbytes // max(1, entry.shape[0] if entry.shape else 1))
        if first + bits.nbytes > entry.nbytes:
            raise BadSnapshot(f"{name!r} has {entry.nbytes} bytes, and {first + bits.nbytes} were to be written")
        view, at = memoryview(bits.view("u1").data), self._starts[name] + first
        with room(self._partial):
            while view:
                written = os.pwrite(self._file, view, at)
                view, at = view[written:], at + written


def hashes(partial: Path, names: Iterable[str]) -> list[bytes]:
    """Return the BLAKE3 of these tensors' bytes, once all rows are written."""
    snapshot = Snapshot(partial)
    return [tensor_hash(snapshot.bits(name)) for name in names]


def finish(path: Path, tensor_hashes: Sequence[bytes]) -> Snapshot:
    """Make the snapshot visible at its place, and return it. `tensor_hashes`: tensor hashes in the order of the
    tensors."""
    begun = Snapshot(hidden_path(path))
    root = root_of(begun.tensors, begun.aliases, tensor_hashes)
    move(hidden_path(path), path)
    return Snapshot(path, root=root)
