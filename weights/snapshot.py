"""Read and write a snapshot: all weights of one policy version, bit for bit, in one safetensors file that any library
can load.

1. Tensors stand in ascending order of name and cover the file without holes, so that consecutive tensors of one
   dtype are one flat array. Tied weights are stored once; the metadata's `alias` (JSON) names the others.
2. Weights are handled as unsigned integers of their bits, so that NaN payloads and the sign of zero count.
3. The content root is BLAKE3 over names, dtypes, shapes, BLAKE3 of each tensor's bytes, and aliases. It does not
   depend on the file's header, so the same weights have the same root in every file.
4. A file becomes visible whole, or not at all. Reading is by mmap, so the memory belongs to the page cache.
"""

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from echo2.runtime.files import writing
from echo2.weights import safetensors_header
from echo2.weights.documents import ITEM_BYTES, TensorEntry, check_table
from echo2.weights.errors import BadPayload, BadSnapshot

Bits: TypeAlias = NDArray[np.unsignedinteger[Any]]
BITS: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
"""Element width in bytes -> the unsigned integers in which its bits are seen."""
_ROOT_DOMAIN: Final = b"echo2/content-root/1\0"
_HASH_PIECE: Final = 8 << 20


class WeightsSource(Protocol):
    """Weights that can be read: a `Snapshot`, or a `VirtualSnapshot`, which has no file."""

    @property
    def tensors(self) -> list[TensorEntry]:
        """The tensors, ascending by name."""

    @property
    def aliases(self) -> dict[str, str]:
        """Name -> tensor it is tied to."""

    @property
    def root(self) -> bytes:
        """The content root."""

    def span(self, start: int, elements: int, width: int) -> Bits:
        """Return the `elements` integers of `width` bytes of a frame (weights/payload_format.py), which begins at byte
        `start` of the data."""


class Snapshot:
    """A snapshot file, opened for reading. `tensors`: ascending by name. `aliases`: name -> tensor it is tied to."""

    def __init__(self, path: Path, *, root: bytes | None = None) -> None:
        """Open and check the header. `root`: the content root, where it was computed already.
        Raises `BadSnapshot`, `FileNotFoundError`."""
        self.path = path
        with path.open("rb") as file:
            parsed = read_header(file)
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        self.tensors: list[TensorEntry] = parsed.tensors
        self.aliases = _aliases(parsed)
        self._places = {entry.name: (entry, at) for entry, at in zip(parsed.tensors, parsed.offsets, strict=True)}
        self._start = len(self._bytes) - sum(entry.nbytes for entry in self.tensors)
        self._root = root
        if parsed.offsets != sorted(parsed.offsets):
            raise BadSnapshot(
                f"{path}: tensors are not in the order of their names; use echo2.weights.hf_import.import_model"
            )

    @property
    def start(self) -> int:
        """The byte of the file at which the data begins."""
        return self._start

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return len(self._bytes) - self._start

    @property
    def root(self) -> bytes:
        """The content root, computed at the first use: one pass over the file."""
        return self.find_root(lambda: None)

    def find_root(self, tell: Callable[[], None]) -> bytes:
        """Return the content root. `tell`: called as the file is read."""
        if self._root is None:
            self._root = root_of(self.tensors, self.aliases, self.tensor_hashes(tell))
        return self._root

    def tensor_hashes(self, tell: Callable[[], None] = lambda: None) -> list[bytes]:
        """Return the BLAKE3 of each tensor's bytes, in the order of `tensors`: one pass over the file. `tell`: called
        as it is read."""
        return [tensor_hash(self._bytes[at : at + entry.nbytes], tell) for entry, at in self._places.values()]

    def bits(self, name: str) -> Bits:
        """Return the elements of a tensor, flat, as a read-only view. An alias returns the tensor to which it is
        tied."""
        place = self._places.get(self.aliases.get(name, name))
        if place is None:
            raise BadSnapshot(f"{self.path} has no tensor {name!r}")
        entry, at = place
        return self._bytes[at : at + entry.nbytes].view(BITS[ITEM_BYTES[entry.dtype]])

    def span(self, start: int, elements: int, width: int) -> Bits:
        """Return `elements` integers of `width` bytes from byte `start` of the data, across tensors: a read-only
        view."""
        at = self._start + start
        return self._bytes[at : at + elements * width].view(BITS[width])


class RootHasher:
    """The content root of a stream of bytes: those of all tensors in order, in pieces of any size."""

    def __init__(self, tensors: Sequence[TensorEntry], aliases: dict[str, str]) -> None:
        self._tensors = list(tensors)
        self._aliases = aliases
        self._hashes: list[bytes] = []
        self._hasher = blake3()
        self._left = 0
        self._opened = False
        self._next_tensors()

    def write(self, data: Bits | bytes) -> None:
        """Append bytes. Raises `BadSnapshot` for more bytes than the tensor table lists."""
        view = _view(data)
        while len(view):
            if len(self._hashes) == len(self._tensors):
                raise BadSnapshot("more bytes were written than the tensor table lists")
            piece = view[: self._left]
            self._hasher.update(piece)
            self._left -= len(piece)
            view = view[len(piece) :]
            self._next_tensors()

    def finish(self) -> bytes:
        """Return the content root. Raises `BadSnapshot` when bytes are missing."""
        if len(self._hashes) != len(self._tensors):
            raise BadSnapshot(f"bytes are missing from tensor {self._tensors[len(self._hashes)].name!r} on")
        return root_of(self._tensors, self._aliases, self._hashes)

    def _next_tensors(self) -> None:
        """Finish the hash of a complete tensor, and of any empty ones after it."""
        while self._left == 0 and len(self._hashes) < len(self._tensors):
            if self._opened:
                self._hashes.append(self._hasher.digest())
            self._opened = len(self._hashes) < len(self._tensors)
            if self._opened:
                self._hasher = blake3()
                self._left = self._tensors[len(self._hashes)].nbytes


class SnapshotWriter(RootHasher):
    """A `RootHasher` that also writes the tensors to a file."""

    def __init__(self, file: BinaryIO, tensors: Sequence[TensorEntry], aliases: dict[str, str]) -> None:
        super().__init__(tensors, aliases)
        self._file = file
        file.write(safetensors_header.build(list(tensors), header_metadata(aliases)))

    def write(self, data: Bits | bytes) -> None:
        self._file.write(_view(data))
        super().write(data)


@contextlib.contextmanager
def writing_snapshot(path: Path, tensors: Sequence[TensorEntry], aliases: dict[str, str]) -> Iterator[SnapshotWriter]:
    """Write a snapshot file: visible when the block ends without an error. Call `finish` inside the block.
    Raises `BadSnapshot`, `DiskFull`."""
    try:
        check_table(list(tensors), aliases)
    except BadPayload as error:
        raise BadSnapshot(str(error)) from error
    with writing(path) as file:
        yield SnapshotWriter(file, tensors, aliases)


def root_of(tensors: Sequence[TensorEntry], aliases: dict[str, str], hashes: Sequence[bytes]) -> bytes:
    """Return the content root from the BLAKE3 of each tensor's bytes. Every field is preceded by its length or
    count."""
    hasher = blake3(_ROOT_DOMAIN + struct.pack("<I", len(tensors)))
    for entry, digest in zip(tensors, hashes, strict=True):
        hasher.update(_text(entry.name) + _text(entry.dtype))
        hasher.update(struct.pack(f"<I{len(entry.shape)}Q", len(entry.shape), *entry.shape) + digest)
    hasher.update(struct.pack("<I", len(aliases)))
    for name, target in sorted(aliases.items()):
        hasher.update(_text(name) + _text(target))
    return hasher.digest()


def read_header(file: BinaryIO) -> safetensors_header.Header:
    """Read the header of an open safetensors file. Raises `BadSnapshot`."""
    size = os.fstat(file.fileno()).st_size
    try:
        length = safetensors_header.header_length(file.read(8), size)
        return safetensors_header.parse(file.read(length), size)
    except BadSnapshot as error:
        raise BadSnapshot(f"{file.name}: {error}") from error


def _view(data: Bits | bytes) -> memoryview:
    return memoryview(data if isinstance(data, bytes) else data.view(np.uint8).data)


def header_metadata(aliases: dict[str, str]) -> dict[str, str]:
    """Return the metadata of a snapshot's header."""
    if not aliases:
        return {"format": "pt"}
    alias = json.dumps(aliases, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {"format": "pt", "alias": alias}


def tensor_hash(bits: Bits, tell: Callable[[], None] = lambda: None) -> bytes:
    """Return BLAKE3 of a tensor's bytes. `tell`: called after each piece."""
    data, hasher = bits.view(np.uint8), blake3()
    for at in range(0, len(data), _HASH_PIECE):
        hasher.update(data[at : at + _HASH_PIECE].data)
        tell()
    return hasher.digest()


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _aliases(parsed: safetensors_header.Header) -> dict[str, str]:
    try:
        aliases = json.loads(parsed.metadata.get("alias", "{}"))
        if not isinstance(aliases, dict) or not all(isinstance(target, str) for target in aliases.values()):
            raise BadPayload("not an object of strings")
        check_table(parsed.tensors, aliases)
    except (ValueError, RecursionError, BadPayload) as error:
        raise BadSnapshot(f"alias table of the snapshot: {error}") from error
    return aliases
