"""Encode the changes within a frame as bytes, and decode them: the codec `classes/1`. Knows no file and no tensor name.

A frame is at most `FRAME_ELEMENTS` consecutive elements of one dtype, as unsigned integers of their bits. Encoding
takes the old and the new frame; decoding takes the old frame and the bytes, and returns a `Patch`. Both are pure: the
same input gives the same output on any machine and with any build (native where a compiler was present, else numpy). If
1.6 % of the elements change, applying needs less than a third of a frame's memory, or half of it with numpy.

    kind        body
    SAME        empty
    CLASSES     changes by the exponents of the old weights: `weights.codec.exponent_classes` (BF16 and F16 only)
    XOR         zstd of the byte planes of old ^ new
    FULL        zstd of the byte planes of new (there is no old frame)

BF16 and F16 are CLASSES unless more than half of the elements change. `decode` refuses (`BadPayload`), before it uses
memory in proportion, a body that breaks the rules of `weights.codec.exponent_classes`, and zstd data that does not
declare exactly the frame's size. The data must decompress to that size, without trailing bytes.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from echo2.weights.codec import exponent_classes, native
from echo2.weights.codec.rank_select import Layout, Words
from echo2.weights.documents import ITEM_BYTES
from echo2.weights.errors import BadPayload

NAME: Final = "classes/1"
FRAME_ELEMENTS: Final = 16 << 20
"""Most elements per frame. Bounds the memory of encoding and decoding."""
SAME, CLASSES, XOR, FULL = range(4)

Bits = NDArray[np.unsignedinteger[Any]]
_DENSE_ELEMENTS_PER_CHANGE: Final = 2
"""With more than one change per `_DENSE_ELEMENTS_PER_CHANGE` elements, planes of old ^ new are smaller."""
_LEVEL: Final = 1
_PIECE_ELEMENTS: Final = 1 << 18
_WINDOW_BYTES: Final = 64 << 20


class Build(Protocol):
    """An implementation of `weights.codec.exponent_classes`: the same bytes, the same refusals."""

    def encode(self, old: Words, new: Words, layout: Layout, most: int) -> bytes | None: ...

    def decode(
        self, body: memoryview, old: Words, changes: int, layout: Layout
    ) -> tuple[NDArray[np.uint32], Words]: ...

    def write(self, index: NDArray[np.uint32], bits: Words, target: Words, first: int) -> None: ...


_build: Build = native.best() or exponent_classes.REFERENCE


class Patch(msgspec.Struct, frozen=True):
    """New bits of a frame: at `index` (uint32, ascending), or of every element where `index` is None."""

    index: NDArray[np.uint32] | None
    bits: Bits

    def apply_to_copy(self, old: Bits) -> Bits:
        """Return the new frame; `old` is not touched."""
        if self.index is None:
            return self.bits
        new = old.copy()
        self.apply_in_place(new)
        return new

    def apply_in_place(self, frame: Bits) -> None:
        """Turn the old frame into the new one, in place."""
        if self.index is None:
            frame[:] = self.bits
        elif len(self.index):
            _build.write(self.index, self.bits, frame, 0)

    def pieces(self, old: Bits) -> Iterator[Bits]:
        """Yield the new frame, in pieces that fit a cache."""
        if self.index is None:
            yield self.bits
            return
        for at in range(0, len(old), _PIECE_ELEMENTS):
            low, high = np.searchsorted(self.index, [at, at + _PIECE_ELEMENTS])
            piece = old[at : at + _PIECE_ELEMENTS].copy()
            if low < high:
                _build.write(self.index[low:high], self.bits[low:high], piece, at)
            yield piece

    def changes(self, old: Bits) -> tuple[NDArray[np.uint32], Bits]:
        """Return (positions, new bits) of the elements that differ from `old`."""
        if self.index is not None:
            return self.index, self.bits
        index = np.flatnonzero(old != self.bits).astype(np.uint32)
        return index, self.bits[index]


def encode(dtype: str, old: Bits | None, new: Bits) -> tuple[int, bytes]:
    """Encode a frame of a safetensors dtype as (kind, body). The same frames give the same bytes (XOR and FULL: with
    the same version of zstd)."""
    if old is None:
        return FULL, _pack(_planes(new))
    layout = exponent_classes.LAYOUTS.get(dtype)
    if layout is None:
        return (XOR, _pack(_planes(old ^ new))) if (old != new).any() else (SAME, b"")
    body = _build.encode(old, new, layout, len(old) // _DENSE_ELEMENTS_PER_CHANGE)
    if body is None:
        return XOR, _pack(_planes(old ^ new))
    return (CLASSES, body) if body else (SAME, b"")


def decode(dtype: str, kind: int, body: memoryview, old: Bits | None, count: int) -> Patch:
    """Decode the patch of a frame of `count` elements. Raises `BadPayload`."""
    width = np.dtype(f"<u{ITEM_BYTES[dtype]}")
    if kind == FULL and old is None:
        return Patch(None, _from_planes(_unpack(body, count * width.itemsize), width))
    layout = exponent_classes.LAYOUTS.get(dtype)
    if old is None or kind not in (SAME, CLASSES, XOR) or (kind == CLASSES and layout is None):
        raise BadPayload(
            f"a frame of kind {kind} is not valid here: dtype {dtype}, {'a' if old is not None else 'no'} base"
        )
    if kind == XOR:
        return Patch(None, _from_planes(_unpack(body, count * width.itemsize), width) ^ old)
    if kind == CLASSES and layout is not None:
        return Patch(*_build.decode(body, old, exponent_classes.count(body, count, layout), layout))
    if len(body):
        raise BadPayload("a frame without changes has a body")
    return Patch(np.empty(0, np.uint32), np.empty(0, width))


def changes(dtype: str, kind: int, body: memoryview, count: int) -> int | None:
    """Return how many elements a frame changes, from its body alone; None where only decoding shows it. Raises
    `BadPayload`."""
    layout = exponent_classes.LAYOUTS.get(dtype)
    if kind == CLASSES and layout is not None:
        return exponent_classes.count(body, count, layout)
    return 0 if kind == SAME else None


@contextlib.contextmanager
def using(build: Build) -> Iterator[None]:
    """Run a block with another build: for tests and benchmarks."""
    global _build
    before, _build = _build, build
    try:
        yield
    finally:
        _build = before


def _planes(bits: Bits) -> bytes:
    return np.ascontiguousarray(bits).view(np.uint8).reshape(-1, bits.itemsize).T.tobytes()


def _from_planes(data: bytes, dtype: np.dtype[Any]) -> Bits:
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(-1)


def _pack(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)


def _unpack(data: memoryview, size: int) -> bytes:
    try:
        declared = zstandard.get_frame_parameters(data).content_size
        if declared != size:
            raise BadPayload(f"compressed part declares {declared} bytes, not {size}")
        plain = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadPayload(f"compressed part: {error}") from error
    if len(plain) != size:
        raise BadPayload(f"compressed part holds {len(plain)} bytes, not {size}")
    return plain
