"""Numbers as bits, many at a time: unary codes in one run of bits, fields of any width in another. Pure, numpy only.

Bits fill a byte from its lowest on; a field's lowest bit comes first. The same bits are written by `native/classes.c`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weights.errors import BadPayload

Numbers = NDArray[np.int64]
MAX_WIDTH: Final = 48
"""Bits of a field."""
_PIECE: Final = 1 << 16
"""Fields whose temporaries stay in a core's cache."""


def unary(values: Numbers) -> bytes:
    """Each value as so many zeros and a one."""
    ends = np.cumsum(values + 1)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    bits[ends - 1] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def from_unary(data: memoryview, count: int) -> Numbers:
    """The `count` values of which `data` consists, no byte more. Raises `BadPayload`."""
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
    if len(ends) != count or len(data) != (int(ends[-1]) // 8 + 1 if count else 0):
        raise BadPayload(f"unary part holds {len(ends)} numbers in {len(data)} bytes, not {count}")
    return np.diff(ends, prepend=-1) - 1


def fields(values: Numbers, widths: Numbers) -> bytes:
    """The low `widths[i]` bits of `values[i]`, one after the other."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    words = np.zeros(total // 64 + 2, np.uint64)
    if total:
        starts = ends - widths
        low = values.astype(np.uint64) & ((np.uint64(1) << widths.astype(np.uint64)) - np.uint64(1))
        shift = (starts & 63).astype(np.uint64)
        word = starts >> 6
        first = np.flatnonzero(np.diff(word, prepend=-1))
        words[word[first]] = np.bitwise_or.reduceat(low << shift, first)
        over = np.flatnonzero((starts & 63) + widths > 64)
        # A word is spilled into by one field at most.
        words[word[over] + 1] |= low[over] >> (np.uint64(64) - shift[over])
    return words.astype("<u8").tobytes()[: (total + 7) // 8]


def from_fields(data: memoryview, widths: Numbers) -> Numbers:
    """The fields of which `data` consists. Raises `BadPayload` unless it is as long as they are, padded with zeros."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    if len(data) != (total + 7) // 8 or (total % 8 and data[-1] >> (total % 8)):
        raise BadPayload(f"fields of {total} bits in {len(data)} bytes, or bits after them")
    if not len(ends):
        return np.empty(0, np.int64)
    padded = np.frombuffer(bytes(data) + bytes(16), np.uint8)
    # Eight bytes from each byte on: a field begins in the first of them, and is at most 48 bits long.
    windows: NDArray[Any] = np.ndarray(len(padded) - 8, "<u8", padded.data, strides=(1,))
    found = np.empty(len(ends), np.int64)
    for at in range(0, len(ends), _PIECE):
        width = widths[at : at + _PIECE]
        start = ends[at : at + _PIECE] - width
        shifted = windows[start >> 3] >> (start & 7).astype(np.uint64)
        found[at : at + _PIECE] = shifted & ((np.uint64(1) << width.astype(np.uint64)) - np.uint64(1))
    return found
