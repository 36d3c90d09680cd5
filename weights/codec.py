"""What changed within a frame, as bytes: the codec `gaps-zstd/1`. Pure; knows no file and no tensor name.

A frame is at most `FRAME` consecutive elements of one width (1, 2, 4 or 8 bytes), seen as unsigned integers of their
bits. Encoding takes the old and the new frame; decoding takes the old frame and the bytes, and gives a `Patch`. That is
the whole boundary: a codec that models the old bits better fits behind the same two functions and another `NAME`.

    kind        body
    SAME        empty
    SPARSE      u32 changes K, u32 length of the gap bytes, zstd(gap bytes) with its u32 length, zstd(steps)
    XOR         zstd of the byte planes of old ^ new
    FULL        zstd of the byte planes of new (there is no old frame)

A gap is how many elements are skipped before a change, in bytes: each 255 skips 255 more, any other byte ends the gap.
A step is new - old modulo 2^bits, zigzag (90 % of the changes of a learner's step are one unit in the last place), K of
them in byte planes: all low bytes first. What `decode` enforces before it touches memory, else `BadPayload`:

1. K and the gap bytes are no more than a frame of this size can have.
2. zstd declares exactly the size that the counts give, and yields it, with nothing after it.
3. Positions are inside the frame; each step changes something.
"""

import struct
from typing import Any, Final

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from weights.errors import BadPayload

NAME: Final = "gaps-zstd/1"
FRAME: Final = 4 << 20
"""Elements. Bounds the memory of encoding and decoding."""
SAME, SPARSE, XOR, FULL = range(4)

Bits = NDArray[np.unsignedinteger[Any]]
_DENSE: Final = 8
"""From one change in so many elements on, planes of old ^ new are tried instead of positions."""
_LEVEL: Final = 1
_WINDOW: Final = 64 << 20
_SPARSE_HEAD: Final = struct.Struct("<III")


class Patch(msgspec.Struct, frozen=True):
    """New bits of a frame: at `index` (uint32, ascending), or of every element where `index` is None."""

    index: NDArray[np.uint32] | None
    bits: Bits

    def onto(self, old: Bits) -> Bits:
        """The new frame; `old` is not touched."""
        if self.index is None:
            return self.bits
        new = old.copy()
        new[self.index] = self.bits
        return new

    def changes(self, old: Bits) -> tuple[NDArray[np.uint32], Bits]:
        """(positions, new bits) of the elements that differ from `old`."""
        if self.index is not None:
            return self.index, self.bits
        index = np.flatnonzero(old != self.bits).astype(np.uint32)
        return index, self.bits[index]


def encode(old: Bits | None, new: Bits) -> tuple[int, bytes]:
    """(kind, body) of a frame. The same frames give the same bytes, with the same version of zstd."""
    if old is None:
        return FULL, _pack(_planes(new))
    index = np.flatnonzero(old != new)
    if not len(index):
        return SAME, b""
    if len(index) * _DENSE > len(new):
        return XOR, _pack(_planes(old ^ new))
    gaps = _gap_bytes(index)
    packed = _pack(gaps.tobytes())
    steps = _pack(_planes(_zigzag(new[index] - old[index])))
    return SPARSE, _SPARSE_HEAD.pack(len(index), len(gaps), len(packed)) + packed + steps


def decode(kind: int, body: memoryview, old: Bits | None, count: int, width: int) -> Patch:
    """What becomes of a frame of `count` elements of `width` bytes. Raises `BadPayload`."""
    dtype = np.dtype(f"<u{width}")
    if kind == FULL and old is None:
        return Patch(None, _from_planes(_unpack(body, count * width), dtype))
    if old is None or kind not in (SAME, SPARSE, XOR):
        raise BadPayload(f"frame of kind {kind} does not belong here")
    if kind == XOR:
        return Patch(None, _from_planes(_unpack(body, count * width), dtype) ^ old)
    if kind == SPARSE:
        return _decode_sparse(body, old)
    if len(body):
        raise BadPayload("a frame without changes has a body")
    return Patch(np.empty(0, np.uint32), np.empty(0, dtype))


def _decode_sparse(body: memoryview, old: Bits) -> Patch:
    if len(body) < _SPARSE_HEAD.size:
        raise BadPayload("sparse frame is cut short")
    changes, gap_bytes, packed = _SPARSE_HEAD.unpack_from(body)
    if not 0 < changes <= len(old) or gap_bytes > changes + len(old) // 255:
        raise BadPayload(f"sparse frame claims {changes} changes in {gap_bytes} gap bytes for {len(old)} elements")
    rest = body[_SPARSE_HEAD.size :]
    index = _from_gap_bytes(np.frombuffer(_unpack(rest[:packed], gap_bytes), np.uint8), changes, len(old))
    steps = _from_planes(_unpack(rest[packed:], changes * old.itemsize), old.dtype)
    if not steps.all():
        raise BadPayload("sparse frame lists an element that does not change")
    return Patch(index, old[index] + _unzigzag(steps))


def _gap_bytes(index: NDArray[np.intp]) -> NDArray[np.uint8]:
    gaps = np.diff(index, prepend=-1) - 1
    ends = np.cumsum(gaps // 255 + 1) - 1
    data = np.full(int(ends[-1]) + 1, 255, np.uint8)
    data[ends] = gaps % 255
    return data


def _from_gap_bytes(data: NDArray[np.uint8], changes: int, count: int) -> NDArray[np.uint32]:
    ends = np.flatnonzero(data != 255)
    # At most FRAME + FRAME / 255 bytes of at most 255 each: the sum fits 32 bits.
    if len(ends) != changes or ends[-1] != len(data) - 1:
        raise BadPayload(f"gap bytes hold {len(ends)} positions, not {changes}")
    index = np.cumsum(data, dtype=np.uint32)[ends]
    index += np.arange(changes, dtype=np.uint32)
    if index[-1] >= count:
        raise BadPayload(f"position {index[-1]} in a frame of {count} elements")
    return index


def _zigzag(steps: Bits) -> Bits:
    signed = steps.view(f"<i{steps.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * steps.itemsize - 1))).view(steps.dtype)


def _unzigzag(codes: Bits) -> Bits:
    one = codes.dtype.type(1)
    return (codes >> one) ^ (~(codes & one) + one)


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
        plain = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadPayload(f"compressed part: {error}") from error
    if len(plain) != size:
        raise BadPayload(f"compressed part holds {len(plain)} bytes, not {size}")
    return plain
