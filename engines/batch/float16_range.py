"""Check that float16 can store a model's weights. No torch.

1. A weight whose absolute value is 65,504 or more, or not finite, is refused, with the name of its tensor. 65,504 is
   the greatest value of float16: above it everything rounds to infinity.
2. Published weights are bfloat16. Those of 2^-17 and above are exact in float16; below that they are off by 2^-25 at
   most.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from echo2.engines.engine import EngineError
from echo2.weights.codec.frames import Bits
from echo2.weights.diff import Change

MOST_FLOAT16: Final = 65_504
PIECE_ELEMENTS: Final = 1 << 20
"""Elements that are looked at together, so that what is computed of them stays in a cache."""
_LEAST_REFUSED: Final = {"BF16": 0x4780, "F16": 0x7BFF, "F32": 0x477FE000}
"""The bits of the least absolute value that is refused. Bits of absolute values are in the order of the values, with
infinity and NaN last."""


def check(bits: Bits, source: str, name: str) -> None:
    """Check the elements of a tensor. `source`: its safetensors dtype; types other than floating-point pass. `name`:
    name of the tensor. Raises EngineError."""
    least = _LEAST_REFUSED.get(source)
    if least is None:
        return
    positive = np.array((1 << (8 * bits.itemsize - 1)) - 1, bits.dtype)
    for start in range(0, len(bits), PIECE_ELEMENTS):
        piece = bits[start : start + PIECE_ELEMENTS]
        above = (piece & positive) >= least
        if above.any():
            raise EngineError(
                f"{name} has the weight {_value(piece[above][0], source)!r}, which float16 cannot hold (less than "
                f"{MOST_FLOAT16:,}): this run needs nodes that compute in bfloat16 or float32"
            )


def check_changes(changes: Iterable[Change]) -> Iterator[Change]:
    """Yield changes; raises EngineError before the first that float16 cannot hold."""
    for change in changes:
        check(change.bits, change.tensor.dtype, change.tensor.name)
        yield change


def _value(bits: np.unsignedinteger[Any], source: str) -> float:
    one = np.array([bits])
    if source == "BF16":
        return float((one.astype(np.uint32) << 16).view(np.float32)[0])
    return float(one.view(np.float16 if source == "F16" else np.float32)[0])
