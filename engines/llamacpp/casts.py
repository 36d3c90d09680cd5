"""Cast the bits of a snapshot to the types that llama.cpp computes with. No torch.

1. float32 takes BF16, F16 and F32 without loss.
2. float16 rounds to nearest, ties to even. A weight that it cannot hold is refused (engines.batch.float16_range).
3. bfloat16 takes BF16 as it is, and rounds other types as weights.hf_import does.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from echo2.engines.batch import float16_range
from echo2.engines.engine import EngineError
from echo2.weights.codec.frames import Bits
from echo2.weights.hf_import import bf16_of, floats_of

GGML_TYPES: Final = {"float32": 0, "float16": 1, "bfloat16": 30, "q8_0": 8, "q4_0": 2}
"""Number of the type in ggml."""
ITEM: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_SOURCES: Final = ("BF16", "F16", "F32")

Values = NDArray[Any]


def cast(bits: Bits, source: str, to: str, name: str) -> Values:
    """Return the elements as stored in type `to`: float32, float16, or uint16 bits of bfloat16. `source`: a safetensors
    dtype. `name`: name of the tensor, for the message. Raises EngineError."""
    if source not in _SOURCES:
        raise EngineError(f"{name} is of type {source}: the engine llamacpp takes {', '.join(_SOURCES)}")
    if to == "bfloat16":
        return bits if source == "BF16" else bf16_of(floats_of(bits, source).view(np.uint32))
    if to == "float32":
        return floats_of(bits, source)
    float16_range.check(bits, source, name)
    return bits.view(np.float16) if source == "F16" else floats_of(bits, source).astype(np.float16)
