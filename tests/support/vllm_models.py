"""Whether vLLM can be used here, and models that its attention on a CPU can compute: heads of 32 elements and more.

The tests that need vLLM run in an environment of their own: `make test-vllm`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from echo2.engines.sampling import sampling
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.engines.vllm import availability
from echo2.engines.vllm.noise_request import NoiseRequest
from echo2.tasks import tokenizer
from echo2.weights.torch_io import save_model
from tests.support.tiny_model import OnDisk

needed = pytest.mark.skipif(
    bool(availability.missing()), reason="vLLM is not installed in this environment: make test-vllm sets up one with it"
)
"""Marks a test that needs vLLM."""
INTERFACES: Final = [needed, pytest.mark.filterwarnings("default")]
"""Marks of a module that imports vLLM's interfaces and runs no model."""
REAL: Final = [needed, pytest.mark.slow, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1200)]
"""Marks of a module that runs vLLM: it warns of its own and its libraries' parts, and may start slowly."""
SIZES: Final[dict[str, Any]] = {
    "vocab_size": tokenizer.CHAR_SIZE, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 96, "max_position_embeddings": 512,
    "initializer_range": 0.15, "bos_token_id": None, "eos_token_id": tokenizer.EOS, "pad_token_id": tokenizer.PAD,
}  # fmt: skip
MODELS: Final[dict[str, Callable[[], tuple[Any, Any]]]] = {
    "qwen3, tied": lambda: _of(Qwen3Config, Qwen3ForCausalLM, tie_word_embeddings=True),
    "qwen3": lambda: _of(Qwen3Config, Qwen3ForCausalLM, tie_word_embeddings=False),
    "llama, all biases": lambda: _of(
        LlamaConfig, LlamaForCausalLM, tie_word_embeddings=False, attention_bias=True, mlp_bias=True
    ),
    "qwen2, tied": lambda: _of(Qwen2Config, Qwen2ForCausalLM, tie_word_embeddings=True, hidden_size=256),
}  # fmt: skip


_SEEDS: Final = [bytes([number]) * 16 for number in range(4)]


def params(seed: int | None, first: int = 0, temperature: int = PLAIN_TEMPERATURE, kept_as: int = 0) -> Any:
    """Return vLLM's parameters of a request with the seed of this number; None: without noise."""
    from vllm import SamplingParams

    arguments = None if seed is None else NoiseRequest(_SEEDS[seed], first, temperature, kept_as).arguments
    return SamplingParams(temperature=0.0, extra_args=arguments)


def choice(logits: torch.Tensor, seed: int, position: int) -> int:
    """Return the token that the rule chooses by the seed of this number."""
    tokens, _ = sampling.choose(logits[None], sampling.keys([(_SEEDS[seed], position)]))
    return int(tokens[0])


def make(folder: Path, name: str = "qwen3, tied", seed: int = 0, eos_bias: float = 0.0) -> OnDisk:
    """Write one of `MODELS` with random weights, biases and norms among them. `eos_bias`: above 0 it favours eos."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config, model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn(parameter.shape)
        if eos_bias:
            model.model.embed_tokens.weight[tokenizer.EOS] *= 1 + eos_bias
    config.save_pretrained(folder)
    tokenizer.char_tokenizer().save(str(folder / "tokenizer.json"))
    snapshot = save_model(model, folder / f"{seed}.snapshot")
    return OnDisk(folder, snapshot.path, snapshot.root, model)


def _of(config_class: Any, model_class: Any, **more: Any) -> tuple[Any, Any]:
    config = config_class(**{**SIZES, **more})
    return config, model_class(config).eval()
