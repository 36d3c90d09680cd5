"""The anchors of `benchmarks.diff`: the two codecs in use elsewhere, at their best settings, and the entropy."""

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

Words = NDArray[np.uint16]
_PIECE = 1 << 24


def pack(*parts: NDArray[Any]) -> list[bytes]:
    """Compress each part by zstd-1."""
    return [zstandard.ZstdCompressor(level=1).compress(part.tobytes()) for part in parts]


def unpack(data: bytes, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(data), dtype)


def xor_encode(old: Words, new: Words) -> list[bytes]:
    """Encode as slime, SGLang and SkyRL do: one zstd frame per tensor."""
    return pack(old ^ new)


def xor_apply(parts: list[bytes], current: Words) -> None:
    current ^= unpack(parts[0], np.uint16)


def gaps_encode(old: Words, new: Words) -> list[bytes]:
    """Encode as PULSE v2 and GRAIL do: int32 gaps and bf16 values, by zstd-1 each. One frame for both would be
    larger."""
    index = np.flatnonzero(old != new)
    return pack(np.diff(index, prepend=0).astype(np.int32), new[index])


def gaps_apply(parts: list[bytes], current: Words) -> None:
    current[np.cumsum(unpack(parts[0], np.int32), dtype=np.int64)] = unpack(parts[1], np.uint16)


def entropy(old: Words, new: Words) -> float:
    """Return the entropy, in bytes, of each element's change in ULP given its old exponent: the least for a codec that
    codes the changes independently."""
    exponents, bits = old >> 7 & 0xFF, 0.0
    moved = np.flatnonzero(old != new)
    steps = (_place(new[moved]) - _place(old[moved])).astype(np.int64)
    pieces = (exponents[at : at + _PIECE] for at in range(0, len(old), _PIECE))  # bincount converts each to 8 bytes
    totals = np.sum([np.bincount(piece, minlength=256) for piece in pieces], axis=0)
    for exponent, members in enumerate(totals.tolist()):
        counts = np.unique(steps[exponents[moved] == exponent], return_counts=True)[1]
        counts = np.append(counts, members - counts.sum())
        shares = counts[counts > 0] / max(1, members)
        bits -= float(members * (shares * np.log2(shares)).sum())
    return bits / 8


def _place(bits: Words) -> NDArray[np.int32]:
    """Return the place of each value in the order of all bf16 values: 1 ULP apart is 1 apart."""
    signed = bits.astype(np.int32)
    return np.where(signed < 0x8000, signed, 0x7FFF - signed)
