"""Snapshots, content roots, payloads and the codec classes/1: docs/protocol/weights.md and payload.md."""

import struct
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import zstandard
from documents import Map, Taker, check, digest, unpack

FRAME = 16_777_216
EXPONENTS = {"BF16": (7, 0xFF), "F16": (10, 0x1F)}
Array = np.ndarray[Any, Any]
unzip = zstandard.ZstdDecompressor().decompress


class Snapshot(NamedTuple):
    """All tensors of a version. `data`: their bytes, one after the other, in ascending order of name."""

    tensors: list[Map]
    aliases: dict[str, str]
    data: Array

    def spans(self) -> Iterator[tuple[Map, Array]]:
        at = 0
        for tensor in self.tensors:
            yield tensor, self.data[at : at + size(tensor)]
            at += size(tensor)

    def root(self) -> bytes:
        hashed = [b"echo2/content-root/1\0", struct.pack("<I", len(self.tensors))]
        for tensor, data in self.spans():
            shape = tensor["shape"]
            hashed += [strings(tensor["name"], tensor["dtype"]), struct.pack(f"<I{len(shape)}Q", len(shape), *shape)]
            hashed.append(digest(data.tobytes()))
        names = [strings(*pair) for pair in sorted(self.aliases.items())]
        return digest(b"".join([*hashed, struct.pack("<I", len(names)), *names]))


def strings(*texts: str) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def width(dtype: str) -> int:
    return 1 if dtype in ("BOOL", "F8_E4M3", "F8_E5M2") else int(dtype.lstrip("BFUI")) // 8


def size(tensor: Map) -> int:
    """Return the number of bytes of a tensor."""
    return int(np.prod(tensor["shape"], dtype=np.int64)) * width(tensor["dtype"])


def applied(payload: bytes, edge: Map, old: Snapshot | None) -> Snapshot:
    """Return the snapshot that a payload produces, its content root verified."""
    take = Taker(payload)
    magic, codec = take.read(8), take.read(take.read(1)[0]).decode()
    check(magic == b"echo2ED1" and codec == edge["codec"] == "classes/1", "no payload, or of another codec")
    flags = take.read(1)[0]
    base, root = take.read(32) if flags & 1 else None, take.read(32)
    check(flags < 4 and base == edge.get("base_root") == (old.root() if old else None), "the payload starts elsewhere")
    tensors, aliases = (old.tensors, old.aliases) if old else ([], {})
    if flags & 2:
        tensors, aliases = unpack(unzip(take.block(), 1 << 30))
    new = np.empty(sum(map(size, tensors)), np.uint8)
    for dtype, start, end in frames(tensors):
        kind = take.read(1)[0]
        body = take.block() if kind else b""
        before = old.data[start:end].view(f"<u{width(dtype)}") if old else None
        new[start:end] = decoded(kind, body, before, dtype).view(np.uint8)
    check(take.tell() == len(payload), "a payload that is cut short, or goes on after its last frame")
    snapshot = Snapshot(tensors, aliases, new)
    check(snapshot.root() == root == edge["root"], "the payload does not come to its content root")
    return snapshot


def frames(tensors: list[Map]) -> Iterator[tuple[str, int, int]]:
    """Yield (dtype, first byte, last byte + 1): runs of one dtype, split at FRAME elements."""
    at = 0
    for dtype, run in groupby(tensors, key=lambda tensor: str(tensor["dtype"])):
        end, step = at + sum(map(size, run)), FRAME * width(dtype)
        yield from ((dtype, first, min(first + step, end)) for first in range(at, end, step))
        at = end


def decoded(kind: int, body: bytes, old: Array | None, dtype: str) -> Array:
    """Return the bits of a new frame."""
    check(kind < 4 and (kind == 3) == (old is None) and (kind != 1 or dtype in EXPONENTS), "a frame of another kind")
    if kind in (2, 3):
        planes = np.frombuffer(unzip(body, 1 << 30), np.uint8).reshape(width(dtype), -1)
        bits = np.ascontiguousarray(planes.T).view(f"<u{width(dtype)}").reshape(-1)
        return bits if old is None else bits ^ old
    assert old is not None
    return changed(old, body, *EXPONENTS[dtype]) if kind else old


def changed(old: Array, body: bytes, shift: int, mask: int) -> Array:
    """Decode a frame of kind CLASSES."""
    take, new = Taker(body), old.copy()
    lo, used = take.read(1)[0], int.from_bytes(take.read(2), "little")
    heads = [(of, *read_head(take)) for of in range(16) if used >> of & 1]
    codes = take.read(take.number())
    bits, classes = Bits(codes, take.read()), np.clip((old.astype(np.int64) >> shift & mask) - lo, 0, 15)
    for of, changes, gaps, staying, form, large, large_gaps in heads:
        ranks = np.cumsum(bits.take(changes if staying is None else staying, gaps) + 1) - 1
        ranks = ranks if staying is None else np.setdiff1d(np.arange(changes + staying), ranks)
        down, sizes, listed = bits.fields(np.ones(changes, np.int64)), np.ones(changes, np.int64), slice(None)
        if large is not None:
            listed = np.cumsum(bits.take(large, large_gaps) + 1) - 1
            sizes[listed] += 1
        sizes[listed] += bits.take(changes if large is None else large, form)
        members = np.flatnonzero(classes == of)
        check(ranks[-1] < len(members), "a rank beyond its class")
        before = old[members[ranks]].astype(np.int64)
        places = np.where(before < 0x8000, before, 0x7FFF - before) + np.where(down, -sizes, sizes)
        check(places.min() >= -0x8000 and places.max() <= 0x7FFF, "a step beyond the floats")
        new[members[ranks]] = np.where(places >= 0, places, 0x7FFF - places)
    bits.end()
    return new


def read_head(take: Taker) -> tuple[int, int, int | None, int, int | None, int]:
    """Read (K, k of the gaps, U or None, form of the sizes, X or None, k of the gaps between large steps)."""
    changes, gaps = take.number(), take.read(1)[0]
    staying, sizes = take.number() if gaps & 0x80 else None, take.read(1)[0]
    large = take.number() if sizes & 0x80 else None
    return changes, gaps & 0x7F, staying, sizes & 0x7F, large, take.read(1)[0] if large else 0


class Bits:
    """Decode numbers from two runs of bits: unary codes, and fields."""

    def __init__(self, codes: bytes, fields: bytes) -> None:
        self._ends = np.flatnonzero(np.unpackbits(np.frombuffer(codes, np.uint8), bitorder="little"))
        self._bits = np.unpackbits(np.frombuffer(fields, np.uint8), bitorder="little").astype(np.int64)
        self._code = self._bit = 0

    def take(self, count: int, form: int) -> Array:
        """`form`: k, and 0x40 where the code is Elias'."""
        k = form & 0x3F
        ends = self._ends[self._code : self._code + count]
        quotients = np.diff(ends, prepend=self._ends[self._code - 1] if self._code else -1) - 1
        check(len(quotients) == count, "unary codes are cut short")
        self._code += count
        if form & 0x40:
            return (1 << quotients + k) + self.fields(quotients + k) - (1 << k)
        return quotients << k | self.fields(np.full(count, k))

    def fields(self, widths: Array) -> Array:
        ends = np.cumsum(widths) + self._bit
        check(not len(ends) or ends[-1] <= len(self._bits), "fields are cut short")
        starts, values = ends - widths, np.zeros(len(widths), np.int64)
        for place in range(int(widths.max(initial=0))):
            wide = widths > place
            values[wide] |= self._bits[starts[wide] + place] << place
        self._bit = int(ends[-1]) if len(ends) else self._bit
        return values

    def end(self) -> None:
        check(self._code == len(self._ends) and not self._bits[self._bit :].any(), "numbers are followed by others")
