"""`weights.codec.bitstream` compiled by numba: the same bits and refusals. Lengths are checked before memory is
touched."""

from typing import Any, Final

import numpy as np

from weights.codec.compiled.vectors import below, first_one, kernel, set_word, word_at
from weights.codec.rice import Code, Numbers
from weights.errors import BadPayload

_SPARE: Final = 16
"""Bytes after a run of bits that may be read or written."""
_LONGEST_ELIAS: Final = 16
_RICE, _ELIAS, _PLAIN = range(3)
_CODES, _FIELDS, _STEP = -1, -2, -3
_REFUSALS: Final = {
    _CODES: "unary codes end before their numbers",
    _FIELDS: "fields end before their numbers",
    _STEP: "a step is longer than 16 bits",
}


@kernel
def _quotient(value: Any, k: Any, form: Any) -> Any:
    if form != _ELIAS:
        return value >> k
    word, q = (value + (1 << k)) >> k, -1
    while word:
        word >>= 1
        q += 1
    return q


@kernel
def _sizes(values: Any, k: Any, form: Any) -> Any:
    """(bits of unary codes, bits of fields)"""
    if form == _PLAIN:
        return 0, len(values)
    total = 0
    for value in values:
        total += _quotient(value, k, form)
    return total + len(values), len(values) * k + (total if form == _ELIAS else 0)


@kernel
def _put(codes: Any, code: Any, fields: Any, field: Any, values: Any, k: Any, form: Any) -> Any:
    """From the bits `code` and `field` on, after which there are zeros and room."""
    to, fill = fields.ctypes.data + np.uint64(field >> 3), np.uint64(field & 7)
    word = word_at(to)
    for value in values:
        q = np.int64(0)
        if form != _PLAIN:
            q = _quotient(value, k, form)
            code += q
            codes[code >> 3] |= np.uint8(1 << (code & 7))
            code += 1
        width = 1 if form == _PLAIN else k + q if form == _ELIAS else k
        low = value + (1 << k) if form == _ELIAS else value
        word |= (np.uint64(low) & below(width)) << fill
        set_word(to, word)
        fill += np.uint64(width)
        to += fill >> np.uint64(3)
        word >>= fill & np.uint64(0xF8)
        fill &= np.uint64(7)


@kernel
def _take(
    codes: Any, code: Any, code_end: Any, fields: Any, field: Any, field_end: Any, k: Any, form: Any, out: Any
) -> Any:
    """(bit of the codes, bit of the fields) after as many numbers as `out` holds; or (why not, 0). Spare bytes follow
    both runs of bits, and are zero."""
    for at in range(len(out)):
        q = np.int64(0)
        if form != _PLAIN:
            start = code
            while True:
                if code >= code_end:
                    return _CODES, 0
                word = word_at(codes.ctypes.data + np.uint64(code >> 3)) >> np.uint64(code & 7)
                if word:
                    break
                code += 64 - (code & 7)
            code += first_one(word) + 1
            q = code - start - 1
            if form == _ELIAS and q > _LONGEST_ELIAS:
                return _STEP, 0
        width = 1 if form == _PLAIN else k + q if form == _ELIAS else k
        if width > field_end - field:
            return _FIELDS, 0
        word = word_at(fields.ctypes.data + np.uint64(field >> 3)) >> np.uint64(field & 7)
        value = np.int64(word & below(width))
        field += width
        out[at] = value if form == _PLAIN else (1 << width) + value - (1 << k) if form == _ELIAS else q << k | value
    return code, field


def _form(code: Code | None) -> tuple[int, int]:
    return (0, _PLAIN) if code is None else (code.k, _ELIAS if code.elias else _RICE)


class CompiledBitWriter:
    """As `weights.codec.bitstream.CompiledBitWriter`."""

    def __init__(self) -> None:
        self._runs = [np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8)]
        self._bits = [0, 0]

    def put(self, values: Numbers, code: Code | None) -> None:
        k, form = _form(code)
        after = [bit + more for bit, more in zip(self._bits, _sizes(values, k, form), strict=True)]
        for run, bit in enumerate(after):
            if bit // 8 + _SPARE > len(self._runs[run]):
                self._runs[run] = np.concatenate([self._runs[run], np.zeros(bit // 8 + _SPARE, np.uint8)])
        _put(self._runs[0], self._bits[0], self._runs[1], self._bits[1], values, k, form)
        self._bits = after

    def bits(self) -> tuple[bytes, bytes]:
        codes, fields = (
            run[: (bit + 7) // 8].tobytes() for run, bit in zip(self._runs, self._bits, strict=True)
        )  # fmt: skip
        return codes, fields


class CompiledBitReader:
    """As `weights.codec.bitstream.CompiledBitReader`."""

    def __init__(self, codes: memoryview, fields: memoryview) -> None:
        self._runs = [np.frombuffer(bytes(run) + bytes(_SPARE), np.uint8) for run in (codes, fields)]
        self._ends = [8 * len(codes), 8 * len(fields)]
        self._bits = [0, 0]

    def take(self, count: int, code: Code | None) -> Numbers:
        out = np.empty(count, np.int64)
        (codes, fields), (code_end, field_end) = self._runs, self._ends
        at = _take(codes, self._bits[0], code_end, fields, self._bits[1], field_end, *_form(code), out)
        if at[0] < 0:
            raise BadPayload(_REFUSALS[at[0]])
        self._bits = list(at)
        return out

    def end(self) -> None:
        for run, bit, end in zip(self._runs, self._bits, self._ends, strict=True):
            if (bit + 7) // 8 * 8 != end or (bit % 8 and run[bit // 8] >> bit % 8):
                raise BadPayload("numbers are followed by bits")


def cost(code: Code, values: Numbers) -> int:
    return sum(_sizes(values, *_form(code)))
