"""Read and write the layout of a payload file, and cut the data of a snapshot into frames.

    magic  u8 n, codec name (n bytes)  u8 flags  [32 base root]  32 new root  [u32 n, zstd(table) (n bytes)]  frames

Flags: 1 = there is a base; 2 = there is a tensor table (msgpack [tensors, aliases]). A full edge has a table; a diff
only where its aliases are not the base's. A frame is u8 kind, and unless the kind is SAME, u32 length and body. Frames
follow the snapshot's data: consecutive tensors of one dtype are one flat array, cut every `frames.FRAME` elements.
Integers are little-endian. Truncated, unknown or oversized input raises `BadPayload`.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import zstandard
from blake3 import blake3

from echo2.weights.codec import frames
from echo2.weights.documents import ITEM_BYTES, MAX_DOCUMENT, DType, TensorEntry, check_table
from echo2.weights.errors import BadPayload
from echo2.weights.snapshot import WeightsSource

MAGIC: Final = b"echo2ED1"
_HAS_BASE: Final = 1
_HAS_TABLE: Final = 2


class Table(msgspec.Struct, array_like=True, frozen=True):
    """Tensor table of a snapshot, as `Version` has it."""

    tensors: list[TensorEntry]
    aliases: dict[str, str]


class PayloadHeader(msgspec.Struct, frozen=True):
    """The header of a payload, before the frames. `base_root` is None in a full payload; `table` is None where it
    equals the base's."""

    base_root: bytes | None
    root: bytes
    table: Table | None


class Frame(msgspec.Struct, frozen=True):
    """One frame of a snapshot's data. `start`: its first byte there. `pieces`: (tensor, first element within it,
    elements), in order."""

    start: int
    dtype: DType
    width: int
    elements: int
    pieces: list[tuple[TensorEntry, int, int]]


class PayloadReader:
    """A reader of a payload's pieces, in order; a missing piece raises `BadPayload`."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise BadPayload("payload is empty")
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def take(self, count: int) -> memoryview:
        if count > len(self._data):
            raise BadPayload(f"payload is cut short: {count} bytes expected, {len(self._data)} left")
        piece, self._data = self._data[:count], self._data[count:]
        return piece

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        value: int = struct.unpack("<I", self.take(4))[0]
        return value

    def end(self) -> None:
        if len(self._data):
            raise BadPayload(f"{len(self._data)} bytes follow the last frame")


class Sink:
    """A file that is hashed and counted while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = blake3()
        self.length = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.hash.update(data)
        self.length += len(data)


def header_bytes(old: WeightsSource | None, new: WeightsSource) -> bytes:
    """Encode the header of a payload."""
    with_table = old is None or old.aliases != new.aliases
    flags = (_HAS_BASE if old else 0) | (_HAS_TABLE if with_table else 0)
    name = frames.NAME.encode()
    parts = [MAGIC, bytes([len(name)]), name, bytes([flags])]
    if old is not None:
        parts.append(old.root)
    parts.append(new.root)
    if with_table:
        plain = msgspec.msgpack.encode(Table(new.tensors, new.aliases), order="deterministic")
        packed = zstandard.ZstdCompressor(level=3).compress(plain)
        parts += [struct.pack("<I", len(packed)), packed]
    return b"".join(parts)


def read_header(reader: PayloadReader) -> PayloadHeader:
    """Read the header of a payload. Raises `BadPayload`, also for a codec that this program does not know."""
    if bytes(reader.take(len(MAGIC))) != MAGIC:
        raise BadPayload("not a payload: it does not begin as one")
    name = bytes(reader.take(reader.u8()))
    if name != frames.NAME.encode():
        raise BadPayload(f"payload's codec is {name!r}, this program knows {frames.NAME!r}: update it")
    flags = reader.u8()
    if flags & ~(_HAS_BASE | _HAS_TABLE):
        raise BadPayload(f"payload has unknown flags {flags:#x}: update this program")
    base_root = bytes(reader.take(32)) if flags & _HAS_BASE else None
    root = bytes(reader.take(32))
    return PayloadHeader(base_root, root, _read_table(reader) if flags & _HAS_TABLE else None)


def _read_table(reader: PayloadReader) -> Table:
    packed = reader.take(reader.u32())
    try:
        size = zstandard.get_frame_parameters(packed).content_size
        if size > MAX_DOCUMENT:
            raise BadPayload(f"tensor table claims {size} bytes")
        plain = zstandard.ZstdDecompressor(max_window_size=MAX_DOCUMENT).decompress(packed, allow_extra_data=False)
        table = msgspec.msgpack.decode(plain, type=Table)
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadPayload(f"tensor table: {error}") from error
    check_table(table.tensors, table.aliases)
    return table


def frames_of(tensors: list[TensorEntry]) -> Iterator[Frame]:
    """Cut the data of a snapshot: no frame crosses a change of dtype."""
    start = elements = 0
    pieces: list[tuple[TensorEntry, int, int]] = []
    for entry in tensors:
        width = ITEM_BYTES[entry.dtype]
        if pieces and pieces[-1][0].dtype != entry.dtype:
            yield (frame := _frame(start, pieces))
            start, elements, pieces = start + frame.elements * frame.width, 0, []
        first = 0
        while first < entry.elements:
            count = min(entry.elements - first, frames.FRAME_ELEMENTS - elements)
            pieces.append((entry, first, count))
            first, elements = first + count, elements + count
            if elements == frames.FRAME_ELEMENTS:
                yield _frame(start, pieces)
                start, elements, pieces = start + elements * width, 0, []
    if pieces:
        yield _frame(start, pieces)


def _frame(start: int, pieces: list[tuple[TensorEntry, int, int]]) -> Frame:
    dtype = pieces[0][0].dtype
    return Frame(start, dtype, ITEM_BYTES[dtype], sum(count for _, _, count in pieces), pieces)
