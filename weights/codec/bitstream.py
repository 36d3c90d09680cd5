"""Numbers as bits, many at a time: unary codes in one run of bits, fields of any width in another. Pure, numpy only.

Bits fill a byte from its lowest on; a field's lowest bit comes first. The same bits are written by
`weights.codec.compiled` and `native/classes.c`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weights.codec.rice import Code, Numbers
from weights.errors import BadPayload

_PIECE: Final = 1 << 16
"""Fields whose temporaries stay in a core's cache."""
_LONGEST_ELIAS: Final = 16


class Writer:
    """Numbers, part by part; those without a code are a bit each."""

    def __init__(self) -> None:
        self._quotients: list[Numbers] = []
        self._values: list[Numbers] = []
        self._widths: list[Numbers] = []

    def put(self, values: Numbers, code: Code | None) -> None:
        if code is not None:
            self._quotients.append(code.quotients(values))
        self._values.append(values if code is None else code.fields(values))
        self._widths.append(np.ones(len(values), np.int64) if code is None else code.widths(self._quotients[-1]))

    def bits(self) -> tuple[bytes, bytes]:
        """(unary codes, fields)"""
        codes = _unary(np.concatenate(self._quotients))
        return codes, _fields(np.concatenate(self._values), np.concatenate(self._widths))


class Reader:
    """The same numbers again. Raises `BadPayload` where they are not there, and in the end unless both runs of bits are
    exactly as long as they are, padded with zeros."""

    def __init__(self, codes: memoryview, fields: memoryview) -> None:
        ends = np.flatnonzero(np.unpackbits(np.frombuffer(codes, np.uint8), bitorder="little"))
        if len(codes) != (int(ends[-1]) // 8 + 1 if len(ends) else 0):
            raise BadPayload("unary codes are followed by bytes")
        self._ends, self._taken = ends, 0
        self._size, self._bit = len(fields), 0
        padded = np.frombuffer(bytes(fields) + bytes(16), np.uint8)
        # Eight bytes from each byte on: a field begins in the first of them, and is at most 48 bits long.
        self._windows: NDArray[Any] = np.ndarray(len(padded) - 8, "<u8", padded.data, strides=(1,))

    def take(self, count: int, code: Code | None) -> Numbers:
        quotients = np.empty(0, np.int64) if code is None else self._unary(count)
        if code is not None and code.elias and count and int(quotients.max()) > _LONGEST_ELIAS:
            raise BadPayload("a step is longer than 16 bits")
        fields = self._fields(np.ones(count, np.int64) if code is None else code.widths(quotients))
        return fields if code is None else code.values(quotients, fields)

    def end(self) -> None:
        last = self._bit % 8
        left_over = last and self._bit // 8 < self._size and int(self._windows[self._bit // 8]) & 0xFF
        if self._taken != len(self._ends) or self._size != (self._bit + 7) // 8 or (left_over and left_over >> last):
            raise BadPayload("numbers are followed by bits")

    def _unary(self, count: int) -> Numbers:
        before = int(self._ends[self._taken - 1]) if self._taken else -1
        ends = self._ends[self._taken : self._taken + count]
        self._taken += count
        if len(ends) < count:
            raise BadPayload(f"unary codes end before {count} numbers")
        return np.diff(ends, prepend=before) - 1

    def _fields(self, widths: Numbers) -> Numbers:
        ends = np.cumsum(widths) + self._bit
        self._bit = int(ends[-1]) if len(ends) else self._bit
        if self._bit > 8 * self._size:
            raise BadPayload(f"{self._bit} bits of fields in {self._size} bytes")
        fields = np.empty(len(ends), np.int64)
        for at in range(0, len(ends), _PIECE):
            width = widths[at : at + _PIECE]
            start = ends[at : at + _PIECE] - width
            shifted = self._windows[start >> 3] >> (start & 7).astype(np.uint64)
            fields[at : at + _PIECE] = shifted & ((np.uint64(1) << width.astype(np.uint64)) - np.uint64(1))
        return fields


def _unary(values: Numbers) -> bytes:
    """Each value as so many zeros and a one."""
    ends = np.cumsum(values + 1)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    bits[ends - 1] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _fields(values: Numbers, widths: Numbers) -> bytes:
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
        straddling = np.flatnonzero((starts & 63) + widths > 64)
        # A word is spilled into by one field at most.
        words[word[straddling] + 1] |= low[straddling] >> (np.uint64(64) - shift[straddling])
    return words.astype("<u8").tobytes()[: (total + 7) // 8]
