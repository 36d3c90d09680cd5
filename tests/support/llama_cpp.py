"""Whether llama.cpp can be used here, and models of the architectures that its engine knows.

The variable ECHO2_TEST_DEVICE names the device of these tests, by default the CPU: `make test-vulkan` sets vulkan:0.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from echo2.engines.llamacpp import library
from echo2.tasks import tokenizer
from echo2.weights.torch_io import save_model
from tests.support.tiny_model import OnDisk

DEVICE: Final = os.environ.get("ECHO2_TEST_DEVICE", "cpu")
REASON: Final = f"no llama.cpp is installed: make test-llama, or {library.INSTALL}"
needed = pytest.mark.skipif(bool(library.missing()), reason=REASON)
"""Marks a test that needs the library."""
SIZES: Final[dict[str, Any]] = {
    "vocab_size": tokenizer.CHAR_SIZE, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 512, "initializer_range": 0.15,
    "bos_token_id": None, "eos_token_id": tokenizer.EOS, "pad_token_id": tokenizer.PAD,
}  # fmt: skip
_STRETCHED: Final = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_YARN: Final = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MODELS: Final[dict[str, Callable[[], tuple[Any, Any]]]] = {
    "llama, tied": lambda: _of(LlamaConfig, LlamaForCausalLM, tie_word_embeddings=True),
    "llama, all biases, rope of Llama 3": lambda: _of(
        LlamaConfig, LlamaForCausalLM, tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
        rope_parameters=_STRETCHED,
    ),
    "qwen2, heads of 16": lambda: _of(Qwen2Config, Qwen2ForCausalLM, tie_word_embeddings=True),
    "qwen3, yarn": lambda: _of(Qwen3Config, Qwen3ForCausalLM, tie_word_embeddings=True, rope_parameters=_YARN),
    "qwen3, heads of 24": lambda: _of(Qwen3Config, Qwen3ForCausalLM, tie_word_embeddings=False, head_dim=24),
}  # fmt: skip


def make(folder: Path, name: str, seed: int = 0) -> OnDisk:
    """Write one of `MODELS` with random weights, biases and norms among them."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config, model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn(parameter.shape)
    config.save_pretrained(folder)
    tokenizer.char_tokenizer().save(str(folder / "tokenizer.json"))
    snapshot = save_model(model, folder / f"{seed}.snapshot")
    return OnDisk(folder, snapshot.path, snapshot.root, model)


def _of(config_class: Any, model_class: Any, **more: Any) -> tuple[Any, Any]:
    config = config_class(**SIZES, **more)
    return config, model_class(config).eval()
