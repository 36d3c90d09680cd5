"""Changes as ranks within a class of elements and steps, and back. Pure, numpy only.

A class is a number of four bits. Each of these bits is packed 64 elements to a word; who is of a class are then a few
words' logic, and ranks are counts of ones (Jacobson, Space-efficient static trees and graphs, 1989).
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weights.codec.rice import Numbers
from weights.errors import BadPayload

Words = NDArray[np.uint16]
Masks = NDArray[np.uint64]
CLASSES: Final = 16
_PIECE: Final = 1 << 16
"""Elements whose temporaries stay in a core's cache."""
_BITS: Final = 4
_ONES: Final = np.uint64(0x0101010101010101)
_TOPS: Final = np.uint64(0x8080808080808080)


class Layout(NamedTuple):
    """Where the exponent of a 16-bit float stands: `word >> shift & mask`."""

    shift: int
    mask: int


class Changes(NamedTuple):
    """Those of one class: ranks within it, ascending, and steps among the floats in the order of their values."""

    of: int
    ranks: Numbers
    steps: Numbers


def listed(old: Words, new: Words, layout: Layout, lo: int, most: int) -> list[Changes] | None:
    """The changes of all classes that have any; None if there are more than `most`."""
    index = np.flatnonzero(old != new)
    if len(index) > most:
        return None
    if not len(index):
        return []
    scan, own = Scan(old, layout, lo), _classes(old[index], layout, lo)
    by_class = ((of, index[own == of]) for of in range(CLASSES))
    return [Changes(of, scan.ranks(of, at), _place(new[at]) - _place(old[at])) for of, at in by_class if len(at)]


def merged(
    old: Words, layout: Layout, lo: int, lists: Iterable[Changes], count: int
) -> tuple[NDArray[np.uint32], Words]:
    """(positions, ascending; new bits) of the `count` changes. Raises `BadPayload`."""
    both, at, scan = np.empty(count, np.uint64), 0, Scan(old, layout, lo)
    for of, ranks, steps in lists:
        index = scan.index(of, ranks)
        places = _place(old[index]) + steps
        if places.max() > 0x7FFF or places.min() < -0x8000:
            raise BadPayload("a step leads beyond the 16-bit floats")
        bits = np.where(places >= 0, places, 0x7FFF - places)
        both[at : at + len(index)] = index.astype(np.uint64) << np.uint64(16) | bits.astype(np.uint64)
        at += len(index)
    both.sort()
    return (both >> np.uint64(16)).astype(np.uint32), both.astype(np.uint16)


def write(index: NDArray[np.uint32], bits: Words, target: Words, first: int) -> None:
    """New bits into `target`, which begins at element `first`. Raises `IndexError` where one lies beyond it."""
    target[index - np.uint32(first)] = bits


class Scan:
    """Of elements, which have classes."""

    def __init__(self, elements: Words, layout: Layout, lo: int) -> None:
        self._count = len(elements)
        planes = np.zeros((_BITS, (self._count // 64 + 1) * 8), np.uint8)
        for at in range(0, self._count, _PIECE):
            classes = _classes(elements[at : at + _PIECE], layout, lo)
            for bit in range(_BITS):
                packed = np.packbits(classes & np.uint8(1 << bit), bitorder="little")
                planes[bit, at >> 3 : (at >> 3) + len(packed)] = packed
        self._planes: Masks = planes.view("<u8")

    def ranks(self, of: int, index: NDArray[Any]) -> Numbers:
        """How many elements of class `of` stand before each element of `index`, all of which are of that class."""
        members, after = self._members(of)
        words = members[index >> 6]
        below = words & ((np.uint64(1) << (index & 63).astype(np.uint64)) - np.uint64(1))
        before: Numbers = after[index >> 6] - np.bitwise_count(words) + np.bitwise_count(below)
        return before

    def index(self, of: int, ranks: Numbers) -> NDArray[np.intp]:
        """The elements of class `of` with these (ascending) ranks. Raises `BadPayload` when there are not so many."""
        members, after = self._members(of)
        if ranks[-1] >= after[-1]:
            raise BadPayload(f"rank {ranks[-1]} in a class of {after[-1]} elements")
        place = np.searchsorted(after, ranks.astype(after.dtype), "right")
        words = members[place]
        return place * 64 + _nth_bit(words, (ranks - after[place] + np.bitwise_count(words)).astype(np.uint64))

    def _members(self, of: int) -> tuple[Masks, NDArray[np.int32]]:
        """A bit for each element, and how many are set up to the end of each word."""
        # Inverted until the end: who lacks one of the bits, or has one too many.
        others = np.zeros(self._planes.shape[1], np.uint64)
        for bit, plane in enumerate(self._planes):
            others |= ~plane if of >> bit & 1 else plane
        members = np.invert(others, out=others)
        members[-1] &= (np.uint64(1) << np.uint64(self._count & 63)) - np.uint64(1)
        return members, np.cumsum(np.bitwise_count(members), dtype=np.int32)


def _classes(old: Words, layout: Layout, lo: int) -> NDArray[np.uint8]:
    exponents = (old >> layout.shift).astype(np.uint8)
    if layout.mask != 0xFF:
        exponents &= np.uint8(layout.mask)
    np.maximum(exponents, np.uint8(lo), out=exponents)
    exponents -= np.uint8(lo)
    return np.minimum(exponents, np.uint8(CLASSES - 1), out=exponents)


def _place(bits: Words) -> Numbers:
    """Where a 16-bit float stands among all, by value: -32768 (a NaN) to 32767; +0 is 0, -0 is -1."""
    signed = bits.astype(np.int64)
    return np.where(signed < 0x8000, signed, 0x7FFF - signed)


def _nth_bit(words: Masks, nth: Masks) -> Numbers:
    """Place of the `nth` one (from 0) in each word. Vigna, Broadword implementation of rank/select queries (2008)."""
    counts = np.bitwise_count(words.view(np.uint8)).view("<u8") * _ONES
    # A byte's top bit stays where the count up to its end is above `nth`.
    beyond = ((counts | _TOPS) - (nth + np.uint64(1)) * _ONES) & _TOPS
    shift = (8 - np.bitwise_count(beyond).astype(np.int64)) * 8
    bits = shift.astype(np.uint64)
    before = ((counts << np.uint64(8)) >> bits) & np.uint64(0xFF)
    byte = (words >> bits) & np.uint64(0xFF)
    positions: Numbers = shift + _NTH_IN_BYTE[(byte << np.uint64(3)) + nth - before]
    return positions


def _nth_in_byte() -> NDArray[np.int64]:
    table = np.zeros((256, 8), np.int64)
    for byte in range(256):
        places = [bit for bit in range(8) if byte >> bit & 1]
        table[byte, : len(places)] = places
    return table.reshape(-1)


_NTH_IN_BYTE: Final = _nth_in_byte()
