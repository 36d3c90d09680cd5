"""Compute a small Llama model whose logits are known, before the library is trusted with a run's model.

A library of another build, a driver that computes falsely, or a struct that is laid out otherwise shows here as one
sentence, and not as refused groups. The weights are made by a rule and are exact in every type; the logits are those of
transformers in float32 (tests/engines/llamacpp/test_golden_model.py computes them again).
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from echo2.engines.engine import Dtype, EngineError
from echo2.engines.llamacpp import architectures, backends
from echo2.engines.llamacpp.library import INSTALL, Library
from echo2.engines.llamacpp.resident_model import ResidentModel
from echo2.engines.llamacpp.sequences import Fed, Sequences
from echo2.weights.codec.frames import Bits
from echo2.weights.documents import TensorEntry
from echo2.weights.lora.block_formats import BlockFormat, fits, quantise

CONFIG: Final[dict[str, Any]] = {
    "model_type": "llama", "vocab_size": 48, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "hidden_act": "silu",
    "tie_word_embeddings": True,
}  # fmt: skip
PROMPT: Final = (3, 41, 7, 0, 19, 19, 30)
NEXT_TOKEN: Final = 11
LOGITS: Final = (
    -0.066269, 0.121850, -0.597971, 0.768461, 0.334462, -1.123521, -0.362289, 0.014171, -0.511251, -0.612572, 1.308288,
    2.115159, 0.301492, -1.245596, 0.234477, -0.061885,
)  # fmt: skip
"""The first 16 logits after `PROMPT` and `NEXT_TOKEN`."""
TOLERANCE: Final[dict[Dtype, float]] = {"float32": 2e-3, "float16": 0.02, "bfloat16": 0.1, "blocks": 0.2}
"""Honest figures on a CPU: 7e-7, 1e-3, 6e-3; 0.04 with blocks."""


class GoldenWeights:
    """The weights, as `WeightSource`: multiples of 1/128 between -1/4 and 1/4, by a hash of name and position; the
    norms around 1."""

    def __init__(self) -> None:
        self.path = Path("golden model")
        shapes = architectures.describe(CONFIG).tensors()
        self.tensors = [
            TensorEntry(name=name, dtype="F32", shape=shape)
            for name, shape in sorted(shapes.items())
            if name.endswith(".weight") and "_norm" not in name.rpartition("self_attn.")[2] and name != "lm_head.weight"
        ]
        self.aliases = {"lm_head.weight": "model.embed_tokens.weight"}
        self.formats: dict[str, BlockFormat] = {one.name: "q8_0" for one in self.tensors if fits(one.shape)}

    def bits(self, name: str) -> Bits:
        """Return the elements of a tensor, flat, as float32 bits."""
        entry = next(entry for entry in self.tensors if entry.name == name)
        start = sum(name.encode()) * 7919
        steps = np.arange(start, start + entry.elements, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        values = ((steps >> np.uint64(40)) % np.uint64(65)).astype(np.float32) / 128 - 0.25
        return (values + 1 if len(entry.shape) == 1 else values).view(np.uint32)

    def blocks(self, name: str) -> Bits:
        """Return a matrix in blocks: [rows, bytes per row]."""
        shape = next(entry.shape for entry in self.tensors if entry.name == name)
        return quantise(self.bits(name).view(np.float32).reshape(shape), self.formats[name])


def check(library: Library, device: str, dtype: Dtype, threads: int) -> None:
    """Compute the model on a device. Raises EngineError where its logits are others."""
    model = ResidentModel(
        library, architectures.describe(CONFIG), GoldenWeights(), dtype, backends.device(library, device)
    )
    sequences = Sequences(model, dtype, threads)
    try:
        off = np.abs(_logits(sequences) - np.asarray(LOGITS, np.float32)).max()
    finally:
        sequences.reset()
        model.close()
    if not off <= TOLERANCE[dtype]:
        raise EngineError(
            f"{library.origin} (llama.cpp {library.build}) computes falsely on {device} in {dtype}: the logits of a "
            f"known model are off by {off:.3g}; update the GPU's driver, choose another device, or {INSTALL}"
        )


def _logits(sequences: Sequences) -> NDArray[np.float32]:
    """Return the logits after the prompt and one token more, by a copy of the prompt's sequence, as a group does."""
    first = sequences.take()
    sequences.feed([Fed(token, position, first, wanted=False) for position, token in enumerate(PROMPT)])
    second = sequences.copy(first, len(PROMPT))
    logits = sequences.step([Fed(0, len(PROMPT), first), Fed(NEXT_TOKEN, len(PROMPT), second)])
    return logits[1, : len(LOGITS)].copy()
