"""Convert changes of elements to (rank within the class, step), and back. Pure, numpy only.

A class is a number of four bits. Each of these bits is packed, 64 elements per word. So a few logical operations per
word select the members of a class. A rank is a count of ones (Jacobson, Space-efficient static trees and graphs, 1989).

1. Elements are read in pieces, so that the counts of a piece stay in a CPU cache.
2. The row of a class is (lo + class) mod 16: the low bits of the exponent, which need no subtraction.
3. An element's place is its index when its piece is sorted by row, and within a row by position. One running count of
   ones, over the word pairs of all rows in turn, converts elements to places and back, for all classes.
4. An element's rank is its place, plus its row's members in earlier pieces, minus the members of lower rows in this
   piece.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.weights.codec.rice import Numbers
from echo2.weights.errors import BadPayload

Words = NDArray[np.uint16]
Masks = NDArray[np.uint64]
CLASSES: Final = 16
_TWO_BIT_CLASSES: Final = 4
"""Classes that two bits tell apart."""
_PIECE_ELEMENTS: Final = 1 << 20
"""Elements of a piece. A call of numpy costs about a microsecond, and a piece about a hundred of them."""
_SPAN_PAIRS: Final = 128
"""Word pairs per span, a power of two: merging finds the span of a place, and bisection finds the pair within it."""
_MOST_FRAME_ELEMENTS: Final = 1 << 27
"""Elements of a frame, at most: row and rank are 31 bits."""
_ROW: Final = np.arange(CLASSES, dtype=np.int32) << 27
"""Offset of a row's ranks, so that numbers ascend by row, then by rank."""
_ONES: Final = np.uint64(0x0101010101010101)
_TOPS: Final = np.uint64(0x8080808080808080)


class Layout(NamedTuple):
    """Where the exponent of a 16-bit float stands: `word >> shift & mask`."""

    shift: int
    mask: int


class Changes(NamedTuple):
    """The changes of one class: ranks within it, ascending, and steps along the floats in the order of their values."""

    of: int
    ranks: Numbers
    steps: Numbers


def list_changes(old: Words, new: Words, layout: Layout, lo: int, most: int) -> list[Changes] | None:
    """Return the changes of all classes that have any; None for more than `most`."""
    scan, count = _Scan(len(old), layout, lo), 0
    rows, ranks, steps = [np.empty(0, np.uint8)], [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for at in range(0, len(old), _PIECE_ELEMENTS):
        piece = old[at : at + _PIECE_ELEMENTS]
        elements, was, becomes = _differing(piece, new[at : at + _PIECE_ELEMENTS])
        count += len(elements)
        if count > most:
            return None
        scan.read(piece)
        rows.append(_clip_exponents(was, layout, lo) & np.uint8(CLASSES - 1))
        ranks.append(scan.ranks(rows[-1], elements))
        steps.append(np.subtract(_place(becomes), _place(was), dtype=np.int32))
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    ends = np.cumsum([np.count_nonzero(row == number) for number in range(CLASSES)])
    by_rank, by_step = (np.split(np.concatenate(part).take(order), ends) for part in (ranks, steps))
    turned = [(of, (lo + of) % CLASSES) for of in range(CLASSES)]
    return [Changes(of, by_rank[row], by_step[row]) for of, row in turned if len(by_rank[row])]


def merge_changes(
    old: Words, layout: Layout, lo: int, lists: Iterable[Changes], count: int
) -> tuple[NDArray[np.uint32], Words]:
    """Return (positions, ascending; new bits) of the `count` changes. Raises `BadPayload`."""
    scan, left, done = _Scan(len(old), layout, lo), _Left(lists, lo, count), 0
    index, bits = np.empty(count, np.uint32), np.empty(count, np.uint16)
    for at in range(0, len(old), _PIECE_ELEMENTS):
        piece = old[at : at + _PIECE_ELEMENTS]
        scan.read(piece)
        places, steps = left.take(scan)
        elements = scan.elements(places)
        to = _place(piece.take(elements)) + steps
        if len(to) and (to.max() > 0x7FFF or to.min() < -0x8000):
            raise BadPayload("a step leads beyond the range of 16-bit floats")
        both = elements
        both <<= 16
        both |= _bits(to)
        both.sort()
        here = slice(done, done := done + len(both))
        bits[here] = both
        both >>= 16
        np.add(both, at, out=index[here], casting="unsafe")
    if done < count:
        raise BadPayload("a rank lies beyond its class")
    return index, bits


def write(index: NDArray[np.uint32], bits: Words, target: Words, first: int) -> None:
    """Write new bits into `target`, which begins at element `first`. Raises `IndexError` where one lies beyond it."""
    places = np.subtract(index, first, dtype=np.int64)
    if len(places) and int(places[0]) < 0:
        raise IndexError("a change before the frame")
    target[places] = bits


class _Scan:
    """Holds the rows of one piece at a time, of `count` elements in all, and the members of each row in earlier
    pieces."""

    def __init__(self, count: int, layout: Layout, lo: int) -> None:
        if count >= _MOST_FRAME_ELEMENTS:
            raise ValueError(f"a frame of {count} elements")
        self._layout, self._lo = layout, lo
        words = 2 * _SPAN_PAIRS
        while 64 * words < min(count, _PIECE_ELEMENTS):
            words *= 2
        self._words = words
        self._exponents, self._bits = np.zeros((2, 64 * words), np.uint8)
        self._planes: Masks = np.zeros((2, 2, words), "<u8")
        self._pairs: Masks = np.zeros((2, _TWO_BIT_CLASSES, words), "<u8")
        self._members: Masks = np.zeros((_TWO_BIT_CLASSES, _TWO_BIT_CLASSES, words), "<u8")
        """A bit for each element, of each row: those of row r at (r >> 2, r & 3)."""
        self._ones = np.zeros((_TWO_BIT_CLASSES, _TWO_BIT_CLASSES, words), np.uint8)
        self._before = np.zeros(CLASSES * words // 2 + 1, np.int32)
        """Ones before each pair of words, over all rows in turn: the place of its first member."""
        self.passed = np.zeros(CLASSES, np.int32)
        """Members of each row in earlier pieces."""

    @property
    def starts(self) -> NDArray[np.int32]:
        """The place of each row's first member."""
        return self._before[: -1 : self._words // 2]

    @property
    def sizes(self) -> NDArray[np.int32]:
        """Members of each row in this piece."""
        return np.diff(self._before[:: self._words // 2])

    def read(self, piece: Words) -> None:
        """Read the next piece and count the members of its rows."""
        self.passed += self.sizes
        if len(piece) < 64 * self._words:
            self._members[:] = self._ones[:] = 0
        count = -(-len(piece) // 64)
        pairs = self._pair(self._read_planes(piece, count), self._pairs[..., :count])
        members = self._members[..., :count]
        np.bitwise_and(pairs[1][:, None], pairs[0], out=members)
        if len(piece) % 64:
            members[..., -1] &= (np.uint64(1) << np.uint64(len(piece) % 64)) - np.uint64(1)
        np.bitwise_count(members, out=self._ones[..., :count])
        both = self._ones.reshape(-1).view("<u2")
        ones = both >> 8
        ones += both & 0xFF
        np.cumsum(ones, dtype=np.int32, out=self._before[1:])

    def _read_planes(self, piece: Words, count: int) -> Masks:
        """Return `count` words for each bit of a row: those of bit b at (b >> 1, b & 1)."""
        exponents, bits, planes = self._exponents[: 64 * count], self._bits[: 64 * count], self._planes[..., :count]
        _clip_exponents(piece, self._layout, self._lo, exponents[: len(piece)])
        for bit in range(4):
            np.bitwise_and(exponents, np.uint8(1 << bit), out=bits)
            planes[bit >> 1, bit & 1] = np.packbits(bits, bitorder="little").view("<u8")
        return planes

    @staticmethod
    def _pair(planes: Masks, pairs: Masks) -> Masks:
        """Return masks of the elements with 0, 1, 2 and 3 in the lower, and in the upper, two bits of the row."""
        one, two = planes[:, 0], planes[:, 1]
        np.bitwise_and(one, two, out=pairs[:, 3])
        np.bitwise_xor(one, pairs[:, 3], out=pairs[:, 1])
        np.bitwise_xor(two, pairs[:, 3], out=pairs[:, 2])
        np.bitwise_or(one, two, out=pairs[:, 0])
        np.invert(pairs[:, 0], out=pairs[:, 0])
        return pairs

    def ranks(self, row: NDArray[np.uint8], elements: NDArray[np.intp]) -> Numbers:
        """Return the rank of each of `elements`, which belong to the rows `row`: the number of earlier elements of its
        row."""
        word = row.astype(np.intp)
        word *= self._words
        word += elements >> 6
        below = np.uint64(1) << (elements & 63).astype(np.uint64)
        below -= np.uint64(1)
        below &= self._members.reshape(-1).take(word)
        ranks = self._before.take(word >> 1)
        ranks += np.bitwise_count(below)
        second = (word & 1).astype(np.uint8)
        second *= self._ones.reshape(-1).take(word - 1)
        ranks += second
        ranks += (self.passed - self.starts).take(row)
        return ranks

    def elements(self, places: Numbers) -> NDArray[np.int64]:
        """Return the elements with these places, which ascend."""
        spans = places.searchsorted(self._before[_SPAN_PAIRS::_SPAN_PAIRS])
        pair = np.repeat(np.arange(0, CLASSES * self._words // 2, _SPAN_PAIRS), np.diff(spans, prepend=0))
        half = _SPAN_PAIRS // 2
        while half:
            pair += half * (self._before.take(pair + half) <= places)
            half //= 2
        nth = places - self._before.take(pair)
        word = pair << 1
        first = self._ones.reshape(-1).take(word)
        second = first <= nth
        word += second
        first *= second
        nth -= first
        bit = _nth_bit(self._members.reshape(-1).take(word), nth.astype(np.uint64))
        word &= self._words - 1
        word <<= 6
        word += bit
        return word


class _Left:
    """Holds the changes of all classes that no piece has taken so far."""

    def __init__(self, lists: Iterable[Changes], lo: int, count: int) -> None:
        self._keys, self._steps = np.empty((2, count), np.int32)
        """Row and rank of each change, ascending; and its step."""
        rows = {(lo + changes.of) % CLASSES: changes for changes in lists}
        at = 0
        for row, changes in sorted(rows.items()):
            here = slice(at, at := at + len(changes.ranks))
            np.add(changes.ranks, _ROW[row], out=self._keys[here])
            self._steps[here] = changes.steps
        self._begins = self._keys.searchsorted(_ROW).tolist()

    def take(self, scan: _Scan) -> tuple[Numbers, Numbers]:
        """Return (places, ascending; steps) of the changes that lie in the piece that `scan` has read."""
        first = _ROW + scan.passed
        ends = self._keys.searchsorted(first + scan.sizes).tolist()
        here = [slice(*pair) for pair in zip(self._begins, ends, strict=True)]
        shift = np.repeat(first - scan.starts, np.subtract(ends, self._begins))
        self._begins = ends
        places = np.concatenate([self._keys[part] for part in here])
        places -= shift
        return places, np.concatenate([self._steps[part] for part in here])


def _differing(old: Words, new: Words) -> tuple[NDArray[np.intp], Words, Words]:
    """Return (elements, old bits, new bits) where the two differ: find the differing groups of four first, then the
    elements within them."""
    shift = 2 if len(old) % 4 == 0 and old.flags.c_contiguous and new.flags.c_contiguous else 0
    wide = np.dtype(f"<u{2 << shift}")
    groups = _set(old.view(wide) != new.view(wide))
    was, becomes = (side.view(wide).take(groups).view("<u2") for side in (old, new))
    differ = np.flatnonzero(was != becomes)
    elements = groups.take(differ >> shift)
    elements <<= shift
    elements += differ & ((1 << shift) - 1)
    return elements, was.take(differ), becomes.take(differ)


def _set(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the indices of the set `flags`. With few set flags this takes half of numpy's time."""
    packed = np.packbits(flags, bitorder="little")
    at = np.flatnonzero(packed != 0)
    ones = np.flatnonzero(np.unpackbits(packed.take(at), bitorder="little").view(np.bool_))
    places = at.take(ones >> 3)
    places <<= 3
    ones &= 7
    places += ones
    return places


def _clip_exponents(
    elements: Words, layout: Layout, lo: int, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Return clip(exponent, lo, lo + 15) of each element."""
    if out is None:
        out = np.empty(len(elements), np.uint8)
    np.right_shift(elements, layout.shift, out=out, casting="unsafe")
    if layout.mask != 0xFF:
        out &= np.uint8(layout.mask)
    return np.clip(out, np.uint8(lo), np.uint8(min(lo + CLASSES - 1, 0xFF)), out=out)


def _place(bits: Words) -> NDArray[np.int16]:
    """Return the rank of each 16-bit float among all, by value: -32768 (a NaN) to 32767; +0 is 0, -0 is -1."""
    return _mirror_negatives(bits.astype(np.uint16).view(np.int16))


def _bits(places: Numbers) -> Words:
    """Return the floats that stand at these places."""
    return _mirror_negatives(places.astype(np.int16)).view(np.uint16)


def _mirror_negatives(signed: NDArray[np.int16]) -> NDArray[np.int16]:
    """Invert the lower bits of negative numbers: in place, and its own inverse."""
    flips = signed >> 15
    flips &= 0x7FFF
    signed ^= flips
    return signed


def _nth_bit(words: Masks, nth: Masks) -> NDArray[np.int64]:
    """Return the place of the `nth` one (from 0) in each word.

    Vigna, Broadword implementation of rank/select queries (2008).
    """
    counts = np.bitwise_count(words.view(np.uint8)).view("<u8")
    counts *= _ONES
    # A byte's top bit stays where the count up to its end is above `nth`.
    beyond = counts | _TOPS
    beyond -= (nth + np.uint64(1)) * _ONES
    beyond &= _TOPS
    shift = np.uint64(8) - np.bitwise_count(beyond)
    shift <<= np.uint64(3)
    counts <<= np.uint64(8)
    counts >>= shift
    counts &= np.uint64(0xFF)
    words = words >> shift
    words &= np.uint64(0xFF)
    words <<= np.uint64(3)
    words += nth
    words -= counts
    shift += _NTH_IN_BYTE.take(words.view(np.int64))
    places: NDArray[np.int64] = shift.view(np.int64)
    return places


def _nth_in_byte() -> NDArray[np.uint8]:
    table = np.zeros((256, 8), np.uint8)
    for byte in range(256):
        places = [bit for bit in range(8) if byte >> bit & 1]
        table[byte, : len(places)] = places
    return table.reshape(-1)


_NTH_IN_BYTE: Final = _nth_in_byte()
