"""The loops of `weights.classes` compiled by numba, for whoever has no native build: the same bytes, the same refusals.

Importing this module takes a second, and the first call of each kernel on a machine some more; hence only `codec`
imports it, and only for frames that are worth it. Kernels let go of the interpreter's lock. They are kept on disk where
numba finds a folder to write to.

Elements are scanned in blocks of 64, as `native/classes.c` does it: the class of an element has four bits, each of them
is a plane of 64 bits a block, and the 16 classes are the conjunctions of planes and inverted planes. Numba has no words
for that, so a block is scanned by LLVM's own vectors, which any processor's instructions can stand for.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic
from numpy.typing import NDArray

from weights.bits import Numbers
from weights.codes import Code
from weights.errors import BadPayload

Function = TypeVar("Function", bound=Callable[..., Any])
Words = NDArray[np.uint16]
_CLASSES: Final = 16
_BLOCKS: Final = 128
_PIECE: Final = 64 * _BLOCKS
_SPARE: Final = 16
"""Bytes after a run of bits that may be read or written."""
_LONGEST: Final = 1 << 31
_LONGEST_ELIAS: Final = 16
_CODES, _FIELDS, _RANK, _STEP = -1, -2, -3, -4
_REFUSALS: Final = {
    _CODES: "unary codes are not as long as their numbers",
    _FIELDS: "fields are not as long as their numbers",
    _RANK: "a rank lies beyond its class",
    _STEP: "a step leads beyond the 16-bit floats",
}


def _kernel(function: Function) -> Function:
    try:
        return numba.njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder to keep it in
        return numba.njit(function, nogil=True)  # type: ignore[no-any-return]


# -- blocks of 64, in LLVM's vectors ------------------------------------------------------------


_U16, _U32, _U64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_WORDS, _BYTES = ir.VectorType(_U16, 64), ir.VectorType(ir.IntType(8), 64)
_MASKS, _COUNTS = ir.VectorType(_U64, _CLASSES), ir.VectorType(_U32, _CLASSES)


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_U32, 0))
    same = ir.Constant(ir.VectorType(_U32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), same)


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


@intrinsic
def _scan64(typing: Any, old: Any, shift: Any, mask: Any, lo: Any, members: Any, before: Any) -> Any:
    """Of the 64 words at `old`: 16 masks, who is of which class, to `members`; and behind the 16 counts at `before`
    those after the block."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        old, shift, mask, lo, members, before = arguments
        narrow = [_splat(builder, builder.trunc(value, _U16), _WORDS) for value in (shift, mask, lo)]
        exponents = builder.and_(builder.lshr(_load(builder, old, _WORDS, 2), narrow[0]), narrow[1])
        above = builder.select(builder.icmp_unsigned(">", exponents, narrow[2]), exponents, narrow[2])
        classes = builder.trunc(builder.sub(above, narrow[2]), _BYTES)
        top = _all(_BYTES, _CLASSES - 1)
        classes = builder.select(builder.icmp_unsigned("<", classes, top), classes, top)
        found = _all(_MASKS, -1)
        for bit in range(4):
            has = builder.icmp_unsigned("!=", builder.and_(classes, _all(_BYTES, 1 << bit)), _all(_BYTES, 0))
            plane = _splat(builder, builder.bitcast(has, _U64), _MASKS)
            inverted = ir.Constant(_MASKS, [0 if of >> bit & 1 else -1 for of in range(_CLASSES)])
            found = builder.and_(found, builder.xor(plane, inverted))
        builder.store(found, builder.inttoptr(members, _MASKS.as_pointer()), align=8)
        ones = get_or_insert_function(builder.module, ir.FunctionType(_MASKS, [_MASKS]), "llvm.ctpop.v16i64")
        counts = builder.trunc(builder.call(ones, [found]), _COUNTS)
        counts = builder.add(counts, _load(builder, before, _COUNTS, 4))
        after = builder.add(before, ir.Constant(_U64, 4 * _CLASSES))
        builder.store(counts, builder.inttoptr(after, _COUNTS.as_pointer()), align=4)
        return context.get_dummy_value()

    return numba.void(*[numba.uint64] * 6), generate


@intrinsic
def _differ64(typing: Any, old: Any, new: Any) -> Any:
    """Which of the 64 words at `old` and at `new` differ."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        old, new = (_load(builder, address, _WORDS, 2) for address in arguments)
        return builder.bitcast(builder.icmp_unsigned("!=", old, new), _U64)

    return numba.uint64(numba.uint64, numba.uint64), generate


@intrinsic
def _ones(typing: Any, word: Any) -> Any:
    return numba.uint64(numba.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def _first_one(typing: Any, word: Any) -> Any:
    """The place of the lowest one; 64 where there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return numba.uint64(numba.uint64), generate


@intrinsic
def _load64(typing: Any, address: Any) -> Any:
    """The eight bytes at an address, the lowest first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], _U64, 1)

    return numba.uint64(numba.uint64), generate
