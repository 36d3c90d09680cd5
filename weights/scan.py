"""Ranks of elements within their class, and back: which element is the r-th of its class. Pure, numpy only.

A class is a number of four bits. Each of these bits is packed 64 elements to a word; who is of a class are then a few
words' logic, and ranks are counts of ones (Jacobson, Space-efficient static trees and graphs, 1989).
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weights.bits import Numbers
from weights.errors import BadPayload

Words = NDArray[np.uint64]
_PIECE: Final = 1 << 16
"""Elements whose temporaries stay in a core's cache."""
_BITS: Final = 4
_ONES: Final = np.uint64(0x0101010101010101)
_TOPS: Final = np.uint64(0x8080808080808080)


class Scan:
    """Of `elements`, whose class `classify` tells: 0 to 15, uint8, for a piece of them."""

    def __init__(self, elements: NDArray[Any], classify: Callable[[NDArray[Any]], NDArray[np.uint8]]) -> None:
        self._count = len(elements)
        planes = np.zeros((_BITS, (self._count // 64 + 1) * 8), np.uint8)
        for at in range(0, self._count, _PIECE):
            classes = classify(elements[at : at + _PIECE])
            for bit in range(_BITS):
                packed = np.packbits(classes & np.uint8(1 << bit), bitorder="little")
                planes[bit, at >> 3 : (at >> 3) + len(packed)] = packed
        self._planes: Words = planes.view("<u8")

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

    def _members(self, of: int) -> tuple[Words, NDArray[np.int32]]:
        """A bit for each element, and how many are set up to the end of each word."""
        # Inverted until the end: who lacks one of the bits, or has one too many.
        others = np.zeros(self._planes.shape[1], np.uint64)
        for bit, plane in enumerate(self._planes):
            others |= ~plane if of >> bit & 1 else plane
        members = np.invert(others, out=others)
        members[-1] &= (np.uint64(1) << np.uint64(self._count & 63)) - np.uint64(1)
        return members, np.cumsum(np.bitwise_count(members), dtype=np.int32)


def _nth_bit(words: Words, nth: Words) -> Numbers:
    """Place of the `nth` one (from 0) in each word. Vigna, Broadword implementation of rank/select queries (2008)."""
    counts = np.bitwise_count(words.view(np.uint8)).view("<u8") * _ONES
    # A byte's top bit stays where the count up to its end is above `nth`.
    beyond = ((counts | _TOPS) - (nth + np.uint64(1)) * _ONES) & _TOPS
    shift = (8 - np.bitwise_count(beyond).astype(np.int64)) * 8
    bits = shift.astype(np.uint64)
    before = ((counts << np.uint64(8)) >> bits) & np.uint64(0xFF)
    byte = (words >> bits) & np.uint64(0xFF)
    found: Numbers = shift + _NTH_IN_BYTE[(byte << np.uint64(3)) + nth - before]
    return found


def _nth_in_byte() -> NDArray[np.int64]:
    table = np.zeros((256, 8), np.int64)
    for byte in range(256):
        places = [bit for bit in range(8) if byte >> bit & 1]
        table[byte, : len(places)] = places
    return table.reshape(-1)


_NTH_IN_BYTE: Final = _nth_in_byte()
