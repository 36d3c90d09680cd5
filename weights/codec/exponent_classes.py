"""Code changes of 16-bit floats by the exponent of the old weight: the body of a `CLASSES` frame. Pure.

A learner's update has about one size for all weights. So the probability that a weight's bits change halves per step of
its exponent, and the receiver knows the old exponents. Elements are therefore sorted into 16 classes by old exponent,
clip(exponent - lo, 0, 15), and positions are coded as ranks within the class. The new value is coded as a step in units
of the last place (ULP). Steps count floats in the order of their values, with -0 just below +0.

    u8 lo  u16 classes that have changes (a bit each)  a head for each of them  number n, unary codes (n bytes)  fields

    head     number K of changes
             u8 k of the gaps; + 128: number U, and the list holds the U unchanged elements below the last change
             u8 k of the sizes; + 64: Elias' code, not Rice's; + 128: number X, [u8 k]: large steps are listed

Numbers are LEB128. Codes (`weights.codec.rice`) and fields follow class by class: gaps between listed ranks; K signs
(fields of one bit, 1: down); gaps between the X steps of more than one ULP; and how much the K steps exceed one ULP, or
those X exceed two. `decode` enforces, before it uses memory in proportion, else `BadPayload`:

1. There are at most as many changes as elements, and at most as many numbers as bits.
2. Unary codes and fields are exactly as long as their numbers need.
3. Every rank is below the size of its class, which follows from the old weights; every step ends at a 16-bit float.

`weights.codec.rank_select` processes the elements, `weights.codec.bitstream` the bits.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from echo2.weights.codec import rank_select
from echo2.weights.codec.bitstream import Reader, Writer
from echo2.weights.codec.rank_select import CLASSES, Changes, Layout, Words
from echo2.weights.codec.rice import MAX_K, Code, Numbers, cheapest, rice
from echo2.weights.errors import BadPayload

LAYOUTS: Final = {"BF16": Layout(7, 0xFF), "F16": Layout(10, 0x1F)}
_STAYING_FLAG: Final = 0x80
_LISTED_FLAG: Final = 0x80
_ELIAS: Final = 0x40
_MAX_STEP: Final = 0xFFFF
_SIGNS: Final = None
"""In place of a code: fields of one bit."""


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of class `of`: the count and code of each kind of numbers. `staying`, `large`: None where they are not
    listed."""

    of: int
    changes: int
    gaps: Code
    staying: int | None
    sizes: Code
    large: int | None
    large_gaps: Code

    def parts(self) -> list[tuple[int, Code | None]]:
        """Return (count, code) of each part, in the order of the format."""
        listed = self.changes if self.staying is None else self.staying
        sized = self.changes if self.large is None else self.large
        parts: list[tuple[int, Code | None]] = [(listed, self.gaps), (self.changes, _SIGNS)]
        return [*parts, *([] if self.large is None else [(self.large, self.large_gaps)]), (sized, self.sizes)]

    def to_bytes(self) -> bytes:
        data = _number(self.changes) + bytes([self.gaps.k | (0 if self.staying is None else _STAYING_FLAG)])
        data += b"" if self.staying is None else _number(self.staying)
        form = self.sizes.k | (_ELIAS if self.sizes.elias else 0)
        if self.large is None:
            return data + bytes([form])
        data += bytes([form | _LISTED_FLAG]) + _number(self.large)
        return data + bytes([self.large_gaps.k]) if self.large else data


def window(old: Words, layout: Layout) -> int:
    """Return `lo` for a frame: 15 below the highest exponent that one in 1,024 of about 16,384 elements reaches."""
    sample = old[:: max(1, len(old) >> 14)]
    counts = np.bincount(sample >> layout.shift & layout.mask, minlength=layout.mask + 1)
    reached = np.cumsum(counts[::-1])[::-1] * 1024 >= len(sample)
    return max(0, int(np.flatnonzero(reached)[-1]) - (CLASSES - 1))


class Classes:
    """The implementation in numpy, available on every machine."""

    def encode(self, old: Words, new: Words, layout: Layout, most: int) -> bytes | None:
        """Return the body of the frame; empty if nothing changes, None if more than `most` elements do."""
        lo = window(old, layout)
        lists = rank_select.list_changes(old, new, layout, lo, most)
        if not lists:
            return b"" if lists is not None else None
        used, heads, writer = 0, b"", Writer()
        for changes in lists:
            head, numbers = _plan(changes)
            used |= 1 << changes.of
            heads += head.to_bytes()
            for (_, code), part in zip(head.parts(), numbers, strict=True):
                writer.put(part, code)
        codes, fields = writer.bits()
        return bytes([lo]) + used.to_bytes(2, "little") + heads + _number(len(codes)) + codes + fields

    def decode(self, body: memoryview, old: Words, changes: int, layout: Layout) -> tuple[NDArray[np.uint32], Words]:
        """Return (positions, ascending; new bits) of the `changes`, as given by `count`. Raises `BadPayload`."""
        lo, heads, rest = _read_heads(body, len(old), layout)
        length, rest = _take_number(rest)
        if length > len(rest):
            raise BadPayload("unary codes are cut short")
        lists = _lists(heads, Reader(rest[:length], rest[length:]), len(old))
        return rank_select.merge_changes(old, layout, lo, lists, changes)

    def write(self, index: NDArray[np.uint32], bits: Words, target: Words, first: int) -> None:
        """Write new bits into `target`, which begins at element `first`. Raises `IndexError` beyond it."""
        rank_select.write(index, bits, target, first)


REFERENCE: Final = Classes()


def count(body: memoryview, elements: int, layout: Layout) -> int:
    """Return how many elements a frame changes, from its heads alone. Raises `BadPayload`."""
    return sum(head.changes for head in _read_heads(body, elements, layout)[1])


def _plan(changes: Changes) -> tuple[_Head, list[NDArray[Any]]]:
    """Return the head of a class, and its numbers part by part."""
    of, ranks, steps = changes
    below = int(ranks[-1]) + 1 - len(ranks)
    staying = below if below < len(ranks) else None
    if staying is not None:
        stays = np.ones(int(ranks[-1]) + 1, np.bool_)
        stays[ranks] = False
        ranks = _places(stays)
    gaps, sizes = _gaps(ranks), np.abs(steps) - 1
    large = _places(sizes != 0)
    large_gaps = _gaps(large)
    in_list, rest = rice(large_gaps), sizes[large] - 1
    code, bits = cheapest(rest)
    listed = True
    if 4 * len(large) > len(sizes):
        plain, plain_bits = cheapest(sizes)
        listed = in_list.cost(large_gaps) + bits <= plain_bits
        code = code if listed else plain
    head = _Head(
        of=of, changes=len(steps), gaps=rice(gaps), staying=staying, sizes=code,
        large=len(large) if listed else None, large_gaps=in_list,
    )  # fmt: skip
    return head, [gaps, steps < 0, *([large_gaps, rest] if listed else [sizes])]


def _read_heads(body: memoryview, elements: int, layout: Layout) -> tuple[int, list[_Head], memoryview]:
    """Return (lo, heads, the bytes after them). Enforces rule 1."""
    if len(body) < 3 or body[0] > layout.mask:
        raise BadPayload("frame has no valid list of classes")
    used, rest, heads = body[1] | body[2] << 8, body[3:], []
    for of in range(CLASSES):
        if used >> of & 1:
            head, rest = _read_head(of, rest)
            heads.append(head)
    changes = sum(head.changes for head in heads)
    numbers = sum(how_many for head in heads for how_many, _ in head.parts())
    if not 0 < changes <= elements or numbers > 8 * len(rest) or not all(head.changes for head in heads):
        raise BadPayload(f"frame of {elements} elements claims {changes} changes in {len(rest)} bytes")
    return body[0], heads, rest


def _read_head(of: int, data: memoryview) -> tuple[_Head, memoryview]:
    changes, data = _take_number(data)
    gaps, data = _take_byte(data)
    staying = large = None
    if gaps & _STAYING_FLAG:
        staying, data = _take_number(data)
    form, data = _take_byte(data)
    large_gaps = 0
    if form & _LISTED_FLAG:
        large, data = _take_number(data)
        if large:
            large_gaps, data = _take_byte(data)
    sizes = Code(form & 0x3F, bool(form & _ELIAS))
    if max(gaps & 0x7F, sizes.k, large_gaps) > MAX_K or (large or 0) > changes:
        raise BadPayload(f"invalid header of class {of}")
    head = _Head(
        of=of, changes=changes, gaps=Code(gaps & 0x7F), staying=staying, sizes=sizes, large=large,
        large_gaps=Code(large_gaps),
    )  # fmt: skip
    return head, data


def _lists(heads: list[_Head], reader: Reader, elements: int) -> Iterator[Changes]:
    for head in heads:
        yield Changes(head.of, _ranks(head, reader, elements), _steps(head, reader))
    reader.end()


def _ranks(head: _Head, reader: Reader, elements: int) -> Numbers:
    if head.staying is None:
        return reader.places(head.changes, head.gaps, elements)
    total = head.changes + head.staying
    if total > elements:
        raise BadPayload(f"class {head.of} lists {total} elements of {elements}")
    stays = np.zeros(total, np.bool_)
    stays[reader.places(head.staying, head.gaps, total - 1)] = True
    return _places(~stays)


def _steps(head: _Head, reader: Reader) -> Numbers:
    down = reader.flags(head.changes)
    if head.large is None:
        sizes = reader.take(head.changes, head.sizes, _MAX_STEP) + 1
    else:
        sizes = np.ones(head.changes, np.int32)
        large = reader.places(head.large, head.large_gaps, head.changes)
        sizes[large] = reader.take(head.large, head.sizes, _MAX_STEP - 1) + 2
    flips = np.negative(down.view(np.int8), dtype=np.int32)
    sizes ^= flips
    sizes -= flips
    return sizes


def _places(flags: NDArray[np.bool_]) -> Numbers:
    return np.flatnonzero(flags).astype(np.int32)


def _gaps(places: Numbers) -> Numbers:
    gaps = np.diff(places, prepend=np.int32(-1))
    gaps -= 1
    return gaps


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _take_number(data: memoryview) -> tuple[int, memoryview]:
    value = 0
    for place in range(5):
        byte, data = _take_byte(data)
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, data
    raise BadPayload("a LEB128 number has more than 35 bits")


def _take_byte(data: memoryview) -> tuple[int, memoryview]:
    if not len(data):
        raise BadPayload("heads are cut short")
    return data[0], data[1:]
