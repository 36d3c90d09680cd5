"""Small models of the families of `chat_families`, in each family's own architecture, that end their turns often."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from echo2.weights.torch_io import save_model
from tests.support.chat_families import FAMILIES, end_ids, tokenizer_of, write_folder
from tests.support.tiny_model import OnDisk

OFTEN: Final = 12.0
"""Mean length of a turn, in tokens."""
_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip
_LLAMA3: Final = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
_MODELS: Final[dict[str, Callable[..., Any]]] = {
    "qwen3": lambda **sizes: Qwen3ForCausalLM(Qwen3Config(head_dim=16, **sizes)),
    "llama3": lambda **sizes: LlamaForCausalLM(LlamaConfig(rope_parameters=_LLAMA3, **sizes)),
    "gemma3": lambda **sizes: Gemma3ForCausalLM(
        Gemma3TextConfig(
            head_dim=16, query_pre_attn_scalar=16, sliding_window=16,
            layer_types=["sliding_attention", "full_attention"], **sizes,
        )
    ),
    "smollm2": lambda **sizes: LlamaForCausalLM(LlamaConfig(**sizes)),
}  # fmt: skip


def make(folder: Path, name: str, seed: int = 0) -> OnDisk:
    """Write the folder of a family with random weights. `name`: of `FAMILIES`."""
    family = FAMILIES[name]
    write_folder(folder, family)
    written = json.loads((folder / "config.json").read_text())
    tokenizer = tokenizer_of(family)
    ids = {f"{key}_token_id": None for key in ("bos", "pad")}
    ids |= {key.replace("token", "token_id"): tokenizer.token_to_id(text) for key, text in family.named.items()}
    torch.manual_seed(seed)
    model = _MODELS[name](
        vocab_size=tokenizer.get_vocab_size(), **_SIZES, **(ids | {"eos_token_id": written["eos_token_id"]})
    ).eval()
    _favour(model, end_ids(family))
    model.config.save_pretrained(folder)
    snapshot = save_model(model, folder / "0.snapshot")
    return OnDisk(folder, snapshot.path, snapshot.root, model)


def _favour(model: Any, ends: list[int]) -> None:
    """Make each end likelier than other tokens: all embeddings share an element, and those of the ends have more of
    it."""
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        table[:, 0] = 0.1
        seen = list[torch.Tensor]()
        hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        model(torch.arange(len(table)).reshape(1, -1))
        hook.remove()
        share = 1 / (OFTEN * len(ends))
        table[ends, 0] += math.log(share * len(table) / (1 - share * len(ends))) / float(seen[0][..., 0].mean())
