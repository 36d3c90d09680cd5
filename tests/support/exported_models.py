"""Small model folders as a hub has them, in the form of transformers 4, for programs that read exports.

Their heads have 32 elements, which vLLM computes on a CPU. The ends of a turn have a logit of 0, so that no text ends.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support import bpe_tokenizers

_SIZES: Final[dict[str, Any]] = {
    "vocab_size": bpe_tokenizers.VOCABULARY + 8, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
    "initializer_range": 0.15, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip
_LLAMA3: Final = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


class Exported(NamedTuple):
    """`pre`: of `bpe_tokenizers.PRE`. `config`: beside the sizes. `gguf`: whether llama.cpp's engine knows it."""

    pre: str
    config: dict[str, Any]
    gguf: bool = True


MODELS: Final = {
    "llama, tied, rope of Llama 3": Exported("llama-bpe", {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 500_000.0,
        "rope_scaling": _LLAMA3, "tie_word_embeddings": True,
    }),
    "llama, untied, linear rope": Exported("gpt-2", {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 25_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "tie_word_embeddings": False,
    }),
    "llama, untied, SentencePiece": Exported(bpe_tokenizers.SENTENCE_PIECE, {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    }),
    "qwen2, untied": Exported("qwen2", {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False, "use_sliding_window": False,
    }),
    "qwen3, tied": Exported("qwen2", {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True, "use_sliding_window": False, "attention_bias": False,
    }),
    "qwen3, untied, yarn": Exported("qwen2", {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rope_theta": 1_000_000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        "tie_word_embeddings": False, "use_sliding_window": False, "attention_bias": False,
    }),
    "mixtral": Exported("smaug-bpe", {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "rope_theta": 77_000.0,
        "tie_word_embeddings": False, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None,
    }, gguf=False),
}  # fmt: skip


def make(folder: Path, name: str) -> None:
    """Write the folder of one of `MODELS`, with random weights in bfloat16."""
    made = MODELS[name]
    tokenizer = bpe_tokenizers.trained(made.pre)
    ids = {one["content"]: one["id"] for one in json.loads(tokenizer)["added_tokens"]}
    ends = [ids[bpe_tokenizers.END], ids[bpe_tokenizers.TURN]]
    config = _SIZES | made.config | {"bos_token_id": ids[bpe_tokenizers.BEGIN], "eos_token_id": ends[0]}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    with torch.no_grad():
        model.get_output_embeddings().weight[ends] = 0.0
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (folder / "tokenizer.json").write_text(tokenizer)
    named = {"bos_token": bpe_tokenizers.BEGIN, "eos_token": bpe_tokenizers.END}
    more = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    template = "{% for message in messages %}{{ message['content'] }}<|eot_id|>{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(named | more | {"chat_template": template}))
