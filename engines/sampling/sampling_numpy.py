"""Seeded sampling as in `engines.sampling.sampling`, in numpy: for engines that work without torch.

Rules
1. The rule is gumbel-splitmix64/1, stated at the top of `engines.sampling.sampling`, and of tempered logits
   gumbel-splitmix64/2; the same golden vectors pin both modules.
2. Logarithms are computed only where a token can win: E = -log1p(-w) >= w, so exp(logit) / w bounds exp(logit) / E, by
   which tokens rank. The result is that of the full noise, which is computed where logits are so large that float32
   rounds the noise away.
3. A row is worked off alone, in buffers of its thread that stay in the cache: of a vocabulary of 49,152, 200 KB each.
"""

import hashlib
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.engines.temperature import PLAIN_TEMPERATURE, factor_of

if sys.byteorder != "little":
    raise ImportError("seeded sampling reads 64-bit words as pairs of 32-bit ones: little-endian machines only")

Floats = NDArray[np.float32]
Words = NDArray[np.uint64]

_GOLDEN_RATIO: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_LOW_31: Final = np.uint64(0x7FFFFFFF_7FFFFFFF)
_W_MAX: Final = np.float32(1 - 2.0**-24)
_ROUNDING_SLACK: Final = np.float32(1 - 1e-3)
"""Above the float32 rounding of exp, of the bound and of logit + gumbel together, for |logit| < `_LARGE_LOGIT`."""
_LARGE_LOGIT: Final = 1000.0

_memory = threading.local()


class _Buffers(NamedTuple):
    """Room for one row. `steps`: (i + 1) times the golden ratio. `w` and `weights` have one value per token, in memory
    of their own."""

    steps: Words
    words: Words
    shifted: Words
    w: Floats
    weights: Floats


def keys(pairs: Iterable[tuple[bytes, int]]) -> Words:
    """Return the key of each (seed, position): uint64 [R]. Raises ValueError for a seed that is not 16 bytes."""
    digests = bytearray()
    for seed, position in pairs:
        if len(seed) != 16:
            raise ValueError(f"a seed must have 16 bytes, this one has {len(seed)}")
        digests += hashlib.blake2b(seed + position.to_bytes(4, "little"), digest_size=8).digest()
    return np.frombuffer(digests, "<u8").copy()


def temper(logits: Floats, temperature: int) -> Floats:
    """Return logits brought to a temperature, in thousandths (engines.temperature)."""
    return logits if temperature == PLAIN_TEMPERATURE else logits * np.float32(factor_of(temperature))


def choose(logits: Floats, key: Words) -> tuple[NDArray[np.int64], Floats]:
    """Choose a token per row. logits: float32 [R, V]; key: uint64 [R]. Return (tokens int64 [R], log softmax(logits) of
    each, float32 [R], <= 0)."""
    tokens, logprobs = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        for number, row in enumerate(logits):
            tokens[number], logprobs[number] = _choose(row, key[number])
    return tokens, logprobs


def greedy(logits: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Choose as `choose` does, without noise."""
    tokens, logprobs = logits.argmax(-1), np.empty(len(logits), np.float32)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        for number, row in enumerate(logits):
            top, total = _softmax(row, _buffers(len(row)).weights)
            logprobs[number] = _logprob(row[tokens[number]], top, total)
    return tokens, logprobs


def _choose(row: Floats, key: np.uint64) -> tuple[int, np.float32]:
    room = _buffers(len(row))
    top, total = _softmax(row, room.weights)
    w = _noise(key, room)
    if not abs(top) < _LARGE_LOGIT:
        token = int((row + _gumbel(w)).argmax())
        return token, _logprob(row[token], top, total)
    bound = np.divide(room.weights, w, out=room.weights)
    first = bound.argmax()
    best = bound[first] * w[first] / -np.log1p(-w[first])
    able = np.flatnonzero(bound >= best * _ROUNDING_SLACK)
    token = int(able[(row[able] + _gumbel(w[able])).argmax()])
    return token, _logprob(row[token], top, total)


def _softmax(row: Floats, out: Floats) -> tuple[np.float32, np.float32]:
    """Return (greatest logit, sum of `out`), where `out` becomes exp(logits - greatest)."""
    top = row.max()
    np.exp(np.subtract(row, top, out=out), out=out)
    return top, out.sum()


def _logprob(logit: np.float32, top: np.float32, total: np.float32) -> np.float32:
    value: np.float32 = np.minimum(logit - top - np.log(total), np.float32(0))
    return value


def hash_words(steps: Words, key: Words | np.uint64, x: Words, shifted: Words) -> None:
    """Write splitmix64's words of `key` to `x`, without the top bit of each half. `steps`: 1, 2, ... times the golden
    ratio. `shifted`: room of the size of `x`."""
    np.add(steps, key, out=x)
    for bits, factor in ((30, _MIX_1), (27, _MIX_2)):
        np.bitwise_xor(x, np.right_shift(x, np.uint64(bits), out=shifted), out=x)
        np.multiply(x, factor, out=x)
    np.bitwise_xor(x, np.right_shift(x, np.uint64(31), out=shifted), out=x)
    np.bitwise_and(x, _LOW_31, out=x)


def _noise(key: np.uint64, room: _Buffers) -> Floats:
    """Return w of each token."""
    hash_words(room.steps, key, room.words, room.shifted)
    w = room.w
    w[:] = room.words.view(np.int32)[: len(w)]
    np.add(w, np.float32(0.5), out=w)
    np.multiply(w, np.float32(2.0**-31), out=w)
    return np.minimum(w, _W_MAX, out=w)


def _gumbel(w: Floats) -> Floats:
    noise: Floats = -np.log(-np.log1p(-w))
    return noise


def _buffers(vocabulary: int) -> _Buffers:
    """Return this thread's buffers; they are made anew for another vocabulary."""
    room: Any = getattr(_memory, "room", None)
    if room is None or len(room.w) != vocabulary:
        words = (vocabulary + 1) // 2
        steps = np.arange(1, words + 1, dtype=np.uint64) * _GOLDEN_RATIO
        spare, shifted = np.empty(words, np.uint64), np.empty(words, np.uint64)
        w, weights = np.empty(vocabulary, np.float32), np.empty(vocabulary, np.float32)
        room = _memory.room = _Buffers(steps, spare, shifted, w, weights)
    return room  # type: ignore[no-any-return]
