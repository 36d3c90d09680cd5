"""Write and read many numbers as bits: unary codes in one run of bits, fields of any width in another. Pure, numpy
only.

Bits fill a byte from the lowest up; a field's lowest bit comes first. `native/classes.c` writes the same bits.

Eight fields of one width k take k bytes: a group. So the i-th field of all groups is read, or written, by one shift.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from echo2.weights.codec.rice import Code, Numbers
from echo2.weights.errors import BadPayload

Bytes = NDArray[np.uint8]
_CODES: Final = 1 << 13
"""Bytes of unary codes per step, so that their bits stay in a core's cache."""
_CODES_LIMIT: Final = 1 << 28
"""Most bytes of unary codes, so that 32-bit integers count their bits: 16 times the need of a frame."""
_GROUP: Final = 8
_WIDEST_GROUPED: Final = 16
_LONGEST_ELIAS: Final = 16
_SPARE_BYTES: Final = 32
"""Zero bytes after a run of fields, so that a last group and a window of eight bytes may reach beyond its end."""


class Writer:
    """Collects numbers, part by part; numbers without a code take one bit each."""

    def __init__(self) -> None:
        self._codes: list[NDArray[np.bool_]] = []
        self._fields: list[tuple[Bytes, int]] = []

    def put(self, values: Numbers, code: Code | None) -> None:
        if code is None:
            self._fields.append((np.packbits(values, bitorder="little"), len(values)))
            return
        quotients = code.quotients(values)
        self._codes.append(_unary(quotients))
        if code.elias:
            self._fields.append(_varying(values + (1 << code.k), quotients + code.k))
        elif code.k:
            self._fields.append((_equal(values, code.k), code.k * len(values)))

    def bits(self) -> tuple[bytes, bytes]:
        """Return (unary codes, fields)."""
        return np.packbits(np.concatenate(self._codes), bitorder="little").tobytes(), _join_bits(self._fields)


class Reader:
    """Reads the same numbers. Raises `BadPayload` where numbers are missing. `end` raises it unless both runs of bits
    are used up, but for zero padding."""

    def __init__(self, codes: memoryview, fields: memoryview) -> None:
        if len(codes) >= _CODES_LIMIT:
            raise BadPayload(f"{len(codes)} bytes of unary codes, at most {_CODES_LIMIT - 1} are read")
        self._ends, self._taken = _ones(np.frombuffer(codes, np.uint8)), 0
        """Places of the ones."""
        if len(codes) != (int(self._ends[-1]) // 8 + 1 if len(self._ends) else 0):
            raise BadPayload("bytes follow the last unary code")
        self._size, self._bit = len(fields), 0
        self._fields = np.frombuffer(bytes(fields) + bytes(_SPARE_BYTES), np.uint8)

    def take(self, count: int, code: Code, limit: int) -> Numbers:
        """Return the next `count` numbers, all of them below `limit`, which is at most 2^31."""
        ends = self._unary(count)
        quotients = np.diff(ends, prepend=np.int32(-1))
        quotients -= 1
        most = int(quotients.max()) if count else 0
        if most > (_LONGEST_ELIAS if code.elias else (limit - 1) >> code.k):
            raise BadPayload(f"a number of {limit} or more")
        values = self._elias(quotients, code.k) if code.elias else (quotients << code.k) | self._equal(count, code.k)
        if count and int(values.max()) >= limit:
            raise BadPayload(f"a number of {limit} or more")
        return values.astype(np.int32)

    def places(self, count: int, code: Code, limit: int) -> Numbers:
        """Return `count` places below `limit`, which is at most 2^31, from the gaps before them: Rice codes."""
        places, fields = self._unary(count), self._equal(count, code.k)
        if not count:
            return places
        # The sum of the quotients up to a one is the number of zeros before it.
        numbers = np.arange(count, dtype=np.int32)
        zeros = int(places[-1]) - count + 1
        if (zeros << code.k) + int(fields.sum(dtype=np.int64)) + count > limit:
            raise BadPayload(f"a place lies beyond the {limit} that there are")
        places -= numbers
        places <<= code.k
        places += np.cumsum(fields, dtype=np.int32)
        places += numbers
        return places

    def flags(self, count: int) -> NDArray[np.bool_]:
        """Return the next `count` fields of one bit."""
        first = self._advance(count)
        bits = np.unpackbits(self._fields[first >> 3 : (first + count + 7) >> 3], bitorder="little")
        return bits[first & 7 : (first & 7) + count].view(np.bool_)

    def end(self) -> None:
        last = self._bit % 8
        left_over = last and self._bit // 8 < self._size and int(self._fields[self._bit // 8]) >> last
        if self._taken != len(self._ends) or self._size != (self._bit + 7) // 8 or left_over:
            raise BadPayload("bits follow the last number")

    def _advance(self, bits: int) -> int:
        """Skip `bits` bits of fields and return the index of the first. Raises `BadPayload` if they are missing."""
        first, self._bit = self._bit, self._bit + bits
        if self._bit > 8 * self._size:
            raise BadPayload(f"fields need {self._bit} bits, but have {self._size} bytes")
        return first

    def _unary(self, count: int) -> Numbers:
        """Return the ends of the next `count` unary codes, relative to the beginning of the first."""
        first = int(self._ends[self._taken - 1]) + 1 if self._taken else 0
        ends = self._ends[self._taken : self._taken + count] - np.int32(first)
        self._taken += count
        if len(ends) < count:
            raise BadPayload(f"unary codes end before {count} numbers")
        return ends

    def _equal(self, count: int, width: int) -> Numbers:
        """Return fields of `width` bits, at most 24."""
        first, groups = self._advance(count * width), -(-count // _GROUP)
        if not count * width:
            return np.zeros(count, np.int32)
        if width < _GROUP:
            return _split(self._fields, first, groups, width)[:count].astype(np.int32)
        fields = np.empty((_GROUP, groups), np.uint32)
        for field, row in enumerate(fields):
            byte, shift = divmod(first + field * width, 8)
            row[:] = np.ndarray((groups,), "<u4", self._fields.data, byte, (width,))
            row >>= shift
        fields &= (1 << width) - 1
        return fields.T.reshape(-1)[:count].view(np.int32)

    def _elias(self, quotients: Numbers, k: int) -> NDArray[np.int64]:
        """Return numbers in Elias' code: fields of at most 40 bits."""
        widths = quotients.astype(np.int64) + k
        ends = np.cumsum(widths)
        total = int(ends[-1]) if len(ends) else 0
        starts = ends - widths + self._advance(total)
        windows: NDArray[Any] = np.ndarray(len(self._fields) - 8, "<u8", self._fields.data, strides=(1,))
        fields = windows[starts >> 3] >> (starts & 7).astype(np.uint64)
        fields &= _below(widths)
        values: NDArray[np.int64] = fields.astype(np.int64) + (np.int64(1) << widths) - (1 << k)
        return values


def _split(data: Bytes, first: int, groups: int, width: int) -> Bytes:
    """Return groups of eight fields of `width` bits from bit `first` on.

    `width` is at most 7, so that a group lies within eight bytes. The group is halved three times.
    """
    eights = np.zeros((groups, 8), np.uint8)
    eights[:, : width + 1] = np.ndarray((groups, width + 1), np.uint8, data.data, first >> 3, (width, 1))
    whole = eights.view("<u8")
    whole >>= first & 7
    _part(whole, 32, 4 * width)
    _part(eights.view("<u4"), 16, 2 * width)
    _part(eights.view("<u2"), 8, width)
    return eights.reshape(-1)


def _ones(codes: Bytes) -> Numbers:
    """Return the places of all ones."""
    places, done = np.empty(int(np.bitwise_count(codes).sum(dtype=np.int64)), np.int32), 0
    for at in range(0, len(codes), _CODES):
        here = np.flatnonzero(np.unpackbits(codes[at : at + _CODES], bitorder="little").view(np.bool_))
        here += 8 * at
        places[done : done + len(here)] = here
        done += len(here)
    return places


def _below(widths: NDArray[Any]) -> NDArray[np.uint64]:
    return (np.uint64(1) << widths.astype(np.uint64)) - np.uint64(1)


def _unary(values: Numbers) -> NDArray[np.bool_]:
    """Return the unary codes of the values: per value that many zeros, then a one."""
    ends = np.cumsum(values + 1, dtype=np.intp)
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 1, np.bool_)
    bits[ends] = True
    return bits[1:]


def _equal(values: Numbers, width: int) -> Bytes:
    """Return the low `width` bits of each value, one after the other; eight values fill `width` bytes."""
    if width > _WIDEST_GROUPED:
        return _varying(values, np.full(len(values), width, np.int32))[0]
    groups = -(-len(values) // _GROUP)
    ones = np.zeros(groups * _GROUP, "<u2")
    np.bitwise_and(values, (1 << width) - 1, out=ones[: len(values)], casting="unsafe")
    _join(twos := ones.view("<u4"), 16, width)
    _join(fours := twos.view("<u8"), 32, 2 * width)
    pairs, eights = fours.reshape(groups, 2), np.empty((groups, 2), "<u8")
    # A shift by all 64 bits gives zero in numpy.
    np.bitwise_or(pairs[:, 0], pairs[:, 1] << (4 * width), out=eights[:, 0])
    np.right_shift(pairs[:, 1], 64 - 4 * width, out=eights[:, 1])
    size = (len(values) * width + 7) // 8
    return np.ascontiguousarray(eights.view(np.uint8)[:, :width]).reshape(-1)[:size]


def _join(pairs: NDArray[Any], apart: int, width: int) -> None:
    """Move the upper field of each pair down, from bit `apart` to bit `width`."""
    upper = pairs >> apart
    upper <<= width
    pairs &= (1 << apart) - 1
    pairs |= upper


def _part(pairs: NDArray[Any], apart: int, width: int) -> None:
    """Move the upper field of each pair up, from bit `width` to bit `apart`; drop all higher bits."""
    lower = (1 << width) - 1
    upper = pairs << (apart - width)
    upper &= lower << apart
    pairs &= lower
    pairs |= upper


def _varying(values: Numbers, widths: Numbers) -> tuple[Bytes, int]:
    """Return the low `widths[i]` bits of `values[i]`, one after the other, and their number."""
    ends = np.cumsum(widths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    words = np.zeros(total // 64 + 2, np.uint64)
    if total:
        starts = ends - widths
        low = values.astype(np.uint64) & _below(widths)
        shift = (starts & 63).astype(np.uint64)
        word = starts >> 6
        first = np.flatnonzero(np.diff(word, prepend=-1))
        words[word[first]] = np.bitwise_or.reduceat(low << shift, first)
        straddling = np.flatnonzero((starts & 63) + widths > 64)
        # A word is spilled into by one field at most.
        words[word[straddling] + 1] |= low[straddling] >> (np.uint64(64) - shift[straddling])
    return words.astype("<u8").view(np.uint8)[: (total + 7) // 8], total


def _join_bits(parts: list[tuple[Bytes, int]]) -> bytes:
    """Return runs of bits (bytes, padded with zeros, and the number of bits) as one."""
    total = sum(bits for _, bits in parts)
    out = np.zeros(total // 8 + 2, np.uint8)
    at = 0
    for data, bits in parts:
        byte, shift = divmod(at, 8)
        out[byte : byte + len(data)] |= data << np.uint8(shift)
        if shift:
            out[byte + 1 : byte + 1 + len(data)] |= data >> np.uint8(8 - shift)
        at += bits
    return out[: (total + 7) // 8].tobytes()
