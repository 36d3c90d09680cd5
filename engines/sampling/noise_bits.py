"""The integers of seeded sampling (engines.sampling.sampling): splitmix64's words, 31 bits per token id, in three ways.

1. On a CPU numpy computes them, in half of PyTorch's time: it shifts without a sign, and works on few rows at a time,
   which stay in a cache.
2. On other devices PyTorch computes them in 64-bit integers.
3. On Apple's MPS, where PyTorch's 64-bit operations are incomplete, it computes them in pairs of 32-bit integers. A key
   is then such a pair: [R, 2] int32, low half first.

4. Keys go to a device without a wait for it (engines.devices.host_transfers): a step copies those of its rows.

The bits are the same by each way (tests/engines/sampling/test_noise_bits.py).
"""

import threading
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echo2.engines.devices.host_transfers import upload
from echo2.engines.sampling import sampling_numpy

HASHED_WORDS: Final = 2**15
"""Words that are hashed at a time on a CPU: 256 KB, and as much room."""
GOLDEN_RATIO: Final = 0x9E3779B97F4A7C15
MIX_ROUNDS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shift and factor of the first two rounds; the third one shifts by `LAST_SHIFT`."""
LAST_SHIFT: Final = 31
_LOW_31: Final = 0x7FFFFFFF
_LOW_16: Final = 0xFFFF
_LEAST_INT32: Final = -(1 << 31)

_memory = threading.local()


def keys_of(words: NDArray[np.int64], device: torch.device | str) -> Tensor:
    """Return keys for `bits` on a device: [R] int64, or [R, 2] int32 where rule 3 holds."""
    device = torch.device(device)
    return upload(words.view(np.int32).reshape(-1, 2) if device.type == "mps" else words, device)


def bits(key: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return (31 bits per token id, room for as many values): int32 [R, V], V rounded up to an even number. Both are
    valid until the next call in this thread."""
    words = (vocabulary + 1) // 2
    out, room = _scratch(len(key), 2 * words, key.device)
    if key.dtype == torch.int32:
        _in_halves(_increment_halves(words, key.device), key, out)
    else:
        steps, x, shifted = _increments(words, key.device), out.view(torch.int64), room.view(torch.int64)
        (_by_numpy if key.device.type == "cpu" else _in_words)(steps, key, x, shifted)
    return out, room


def _by_numpy(steps: Tensor, key: Tensor, x: Tensor, shifted: Tensor) -> None:
    """Write the words to `x` (rule 1). `shifted`: room of its size."""
    increments, keys, words, room = (part.numpy().view(np.uint64) for part in (steps, key, x, shifted))
    rows = max(1, HASHED_WORDS // x.shape[1])
    for start in range(0, len(keys), rows):
        part = slice(start, start + rows)
        sampling_numpy.hash_words(increments, keys[part, None], words[part], room[part])


def _in_words(steps: Tensor, key: Tensor, x: Tensor, shifted: Tensor) -> None:
    """Write the words to `x` (rule 2). PyTorch shifts with the sign, hence the masks."""
    torch.add(steps, key[:, None], out=x)
    for shift, factor in MIX_ROUNDS:
        torch.bitwise_right_shift(x, shift, out=shifted).bitwise_and_((1 << (64 - shift)) - 1)
        x.bitwise_xor_(shifted).mul_(_signed_word(factor, 64))
    torch.bitwise_right_shift(x, LAST_SHIFT, out=shifted).bitwise_and_((1 << (64 - LAST_SHIFT)) - 1)
    x.bitwise_xor_(shifted).bitwise_and_(_LOW_31 << 32 | _LOW_31)


def _in_halves(steps: Tensor, key: Tensor, out: Tensor) -> None:
    """Write the words to `out`, [R, W, low and high] (rule 3). `steps`: [2, W]."""
    low = steps[0] + key[:, :1]
    carry = low.bitwise_xor(_LEAST_INT32) < key[:, :1].bitwise_xor(_LEAST_INT32)  # unsigned: the sum wrapped around
    high = steps[1] + key[:, 1:] + carry.to(torch.int32)
    for shift, factor in MIX_ROUNDS:
        low, high = _times(*_xor_shifted(low, high, shift), factor)
    low, high = _xor_shifted(low, high, LAST_SHIFT)
    out[:, 0::2], out[:, 1::2] = low & _LOW_31, high & _LOW_31


def _xor_shifted(low: Tensor, high: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Return x ^ (x >> shift) of a 64-bit number in halves."""
    return low ^ (_shift_right(low, shift) | (high << (32 - shift))), high ^ _shift_right(high, shift)


def _times(low: Tensor, high: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the product modulo 2^64. Each partial product of 16 bits fits into 32 without a sign."""
    factor_low, factor_high = _signed_word(factor & 0xFFFFFFFF, 32), _signed_word(factor >> 32, 32)
    a, b = low & _LOW_16, _shift_right(low, 16)
    c, d = factor & _LOW_16, factor >> 16 & _LOW_16
    ac, ad, bc = a * c, a * d, b * c
    middle = _shift_right(ac, 16) + (ad & _LOW_16) + (bc & _LOW_16)
    above = b * d + _shift_right(ad, 16) + _shift_right(bc, 16) + _shift_right(middle, 16)
    return low * factor_low, above + low * factor_high + high * factor_low


def _shift_right(x: Tensor, shift: int) -> Tensor:
    """Shift 32 bits to the right, without the sign."""
    return (x >> shift) & ((1 << (32 - shift)) - 1)


def _signed_word(word: int, size: int) -> int:
    return word - (1 << size) if word >> (size - 1) else word


@lru_cache(maxsize=8)
def _increments(words: int, device: torch.device) -> Tensor:
    return torch.arange(1, words + 1, dtype=torch.int64, device=device) * _signed_word(GOLDEN_RATIO, 64)


@lru_cache(maxsize=8)
def _increment_halves(words: int, device: torch.device) -> Tensor:
    halves = _increments(words, torch.device("cpu")).numpy().view(np.int32).reshape(-1, 2)
    return upload(np.ascontiguousarray(halves.T), device)


def _scratch(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two int32 [rows, columns] of this thread, used again at each step: fresh memory would cost more than the
    noise."""
    buffer: Tensor | None = getattr(_memory, "buffer", None)
    size = 2 * rows * columns
    if buffer is None or buffer.device != device or buffer.numel() < size:
        with torch.inference_mode(False):  # else it could only be written to by callers in inference mode
            buffer = _memory.buffer = torch.empty(size, dtype=torch.int32, device=device)
    first, second = buffer[:size].view(2, rows, columns)
    return first, second
