"""What numba has no words for: blocks of 64 elements in LLVM's vectors, bits of a word, words at any address.

Numba keeps what it compiled until the module of the kernel itself changes: who changes this one deletes
`__pycache__/*.nbi` of those that use it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from weights.codec.rank_select import CLASSES

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    try:
        return numba.njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder to keep it in
        return numba.njit(function, nogil=True)  # type: ignore[no-any-return]


def _vector(generator: Callable[..., Any]) -> Any:
    return intrinsic(generator)


_U16, _U32, _U64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_WORDS, _BYTES = ir.VectorType(_U16, 64), ir.VectorType(ir.IntType(8), 64)
_MASKS, _COUNTS = ir.VectorType(_U64, CLASSES), ir.VectorType(_U32, CLASSES)


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _store(builder: Any, value: Any, address: Any, align: int) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_U32, 0))
    same = ir.Constant(ir.VectorType(_U32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), same)


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


@_vector
def scan64(typing: Any, old: Any, shift: Any, mask: Any, lo: Any, members: Any, before: Any, after: Any) -> Any:
    """Of the 64 words at `old`: 16 masks, who is of which class, to `members`; and to `after` how many of each stand
    before its end, if the 16 numbers at `before` stand before its beginning."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        old, shift, mask, lo, members, before, after = arguments
        shift, mask, lo = (_splat(builder, builder.trunc(value, _U16), _WORDS) for value in (shift, mask, lo))
        exponents = builder.and_(builder.lshr(_load(builder, old, _WORDS, 2), shift), mask)
        above = builder.select(builder.icmp_unsigned(">", exponents, lo), exponents, lo)
        classes, top = builder.trunc(builder.sub(above, lo), _BYTES), _all(_BYTES, CLASSES - 1)
        classes = builder.select(builder.icmp_unsigned("<", classes, top), classes, top)
        any_lane = _all(_MASKS, -1)
        for bit in range(4):
            has = builder.icmp_unsigned("!=", builder.and_(classes, _all(_BYTES, 1 << bit)), _all(_BYTES, 0))
            plane = _splat(builder, builder.bitcast(has, _U64), _MASKS)
            inverted = ir.Constant(_MASKS, [0 if of >> bit & 1 else -1 for of in range(CLASSES)])
            any_lane = builder.and_(any_lane, builder.xor(plane, inverted))
        kind = ir.FunctionType(_MASKS, [_MASKS])
        counted = get_or_insert_function(builder.module, kind, "llvm.ctpop.v16i64")  # type: ignore[no-untyped-call]
        counts = builder.trunc(builder.call(counted, [any_lane]), _COUNTS)
        _store(builder, any_lane, members, 8)
        _store(builder, builder.add(counts, _load(builder, before, _COUNTS, 4)), after, 4)
        return context.get_dummy_value()

    return numba.void(*[numba.uint64] * 7), generate


@_vector
def differ64(typing: Any, old: Any, new: Any) -> Any:
    """Which of the 64 words at `old` and at `new` differ."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        old, new = (_load(builder, address, _WORDS, 2) for address in arguments)
        return builder.bitcast(builder.icmp_unsigned("!=", old, new), _U64)

    return numba.uint64(numba.uint64, numba.uint64), generate


@_vector
def ones(typing: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return numba.int64(numba.uint64), generate


@_vector
def first_one(typing: Any, word: Any) -> Any:
    """The place of the lowest one; 64 where there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return numba.int64(numba.uint64), generate


@_vector
def word_at(typing: Any, address: Any) -> Any:
    """The eight bytes there, the lowest first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], _U64, 1)

    return numba.uint64(numba.uint64), generate


@_vector
def set_word(typing: Any, address: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store(builder, arguments[1], arguments[0], 1)
        return context.get_dummy_value()

    return numba.void(numba.uint64, numba.uint64), generate


@kernel
def below(bit: Any) -> Any:
    return (np.uint64(1) << np.uint64(bit)) - np.uint64(1)
