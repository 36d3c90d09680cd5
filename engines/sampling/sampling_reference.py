"""The noise of `engines.sampling.sampling` in plain Python integers and floats: the reference for other
implementations.

Floats are rounded to float32 after each step, as the definition says. Logarithms are correct to a double's last digit
and then rounded. Another implementation may differ from them by a few units in the last place of float32.
"""

import hashlib
import math
import struct
from collections.abc import Sequence

from echo2.engines.temperature import factor_of

_MASK_64 = (1 << 64) - 1


def key(seed: bytes, position: int) -> int:
    """Return the u64 key of a 16-byte seed and the token's index within the rollout."""
    return int.from_bytes(hashlib.blake2b(seed + position.to_bytes(4, "little"), digest_size=8).digest(), "little")


def word(key: int, index: int) -> int:
    """Return output `index` (u64) of splitmix64 started at `key`."""
    x = (key + (index + 1) * 0x9E3779B97F4A7C15) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def bits(key: int, token: int) -> int:
    """Return 31 bits for a token id."""
    return (word(key, token // 2) >> (32 * (token % 2))) & 0x7FFFFFFF


def gumbel(bits: int) -> float:
    """Return the noise, in nats, rounded to float32."""
    w = min(_float32(_float32(float(bits)) + 0.5) * 2.0**-31, 1 - 2.0**-24)
    return _float32(-math.log(_float32(-math.log1p(-w))))


def temper(logits: Sequence[float], temperature: int) -> list[float]:
    """Return float32 logits brought to a temperature, in thousandths, by the rule gumbel-splitmix64/2."""
    return [_float32(logit * factor_of(temperature)) for logit in logits]


def choose(logits: Sequence[float], key: int) -> int:
    """Return the token: argmax of logits + noise in float32, the lowest id on a tie."""
    scores = [_float32(logit + gumbel(bits(key, token))) for token, logit in enumerate(logits)]
    return scores.index(max(scores))


def _float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
