"""Quantise matrices in blocks of 32 weights, as GGUF's types Q8_0 and Q4_0 do, and restore them. Without torch.

Rules
1. A block is 32 neighbouring weights of one row: a scale (float16), then the quanta. A weight is scale * quantum, and a
   float32 holds it exactly.
2. Q8_0: quanta from -127 to 127, one byte each; 34 bytes per block. Q4_0: quanta from -8 to 7, stored as q + 8 in half
   a byte each, weights 0 to 15 in the low halves; 18 bytes per block.
3. The bytes are GGUF's, so that llama.cpp computes with them as they are.
"""

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

BlockFormat = Literal["q8_0", "q4_0"]
BLOCK: Final = 32
BLOCK_BYTES: Final[dict[BlockFormat, int]] = {"q8_0": 34, "q4_0": 18}

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def fits(shape: tuple[int, ...]) -> bool:
    """Tell whether blocks can hold a tensor of this shape: a matrix whose rows are whole blocks."""
    return len(shape) == 2 and shape[1] % BLOCK == 0 and shape[1] > 0


def quantise(rows: Floats, form: BlockFormat) -> Bytes:
    """Quantise a matrix [rows, columns], columns a multiple of 32: bytes [rows, columns / 32 * bytes per block]."""
    blocks = rows.reshape(-1, BLOCK)
    scale, quanta = _eight(blocks) if form == "q8_0" else _four(blocks)
    joined = np.concatenate([scale.astype(np.float16).view(np.uint8), quanta], axis=1)
    return joined.reshape(len(rows), -1)


def restore(packed: Bytes, form: BlockFormat) -> Floats:
    """Return the weights of quantised rows: [rows, bytes per row] -> float32 [rows, columns] (rule 1)."""
    blocks = packed.reshape(-1, BLOCK_BYTES[form])
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    quanta = blocks[:, 2:]
    if form == "q8_0":
        numbers = np.ascontiguousarray(quanta).view(np.int8).astype(np.float32)
    else:
        numbers = np.concatenate([quanta & 0x0F, quanta >> 4], axis=1).astype(np.float32) - 8
    return (scale * numbers).reshape(len(packed), -1)


def _eight(blocks: Floats) -> tuple[Floats, Bytes]:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    # Halves away from zero, as C's roundf.
    rounded = np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))
    return scale, rounded.astype(np.int8).view(np.uint8)


def _four(blocks: Floats) -> tuple[Floats, Bytes]:
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scale = largest / np.float32(-8)
    quanta = np.clip(np.trunc(blocks * _inverse(scale) + np.float32(8.5)), 0, 15).astype(np.uint8)
    return scale, quanta[:, : BLOCK // 2] | (quanta[:, BLOCK // 2 :] << 4)


def _inverse(scale: Floats) -> Floats:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
