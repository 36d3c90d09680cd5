"""Write a snapshot as a GGUF file, for programs that read no safetensors."""

from pathlib import Path

from echo2.engines.llamacpp import architectures, gguf_export
from echo2.weights.snapshot import Snapshot


def write(model: Path, snapshot: Snapshot, path: Path) -> None:
    """Write the weights for a model folder in float32, with a vocabulary of invented words: llama-server needs one."""
    architecture = architectures.read(model)
    words = architecture.sizes["vocabulary"]
    keys = {
        **architecture.keys, "tokenizer.ggml.model": "llama", "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(3, words))],
        "tokenizer.ggml.token_type": [2, 3, 3, *([1] * (words - 3))], "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip
    gguf_export.write_weights(architecture, snapshot, path, keys, matrices="float32")
