"""Small folders of each architecture and format that people bring; the table of docs/models.md, made by trying them.

python -m tests.support.architectures docs/models.md     puts the table into that document
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from echo2.coordinator.learner.model import BadModelFolder, NotFinetunable
from echo2.coordinator.learner.model_check import check_model
from echo2.coordinator.run import model_folder
from echo2.runtime.errors import LocalFault
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, PAD, char_tokenizer
from echo2.weights.errors import BadSnapshot

BEGIN: Final = "<!-- models, as tried -->"
END: Final = "<!-- end of models -->"
_SIZES: Final[dict[str, Any]] = {
    "vocab_size": CHAR_SIZE, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 512, "bos_token_id": None,
    "eos_token_id": EOS, "pad_token_id": PAD, "initializer_range": 0.15,
}  # fmt: skip
_GPT: Final = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
_HEADS: Final = {"head_dim": 16}
_SLIDING: Final = {"head_dim": 16, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_GEMMA: Final = {**_SLIDING, "query_pre_attn_scalar": 16}
_VISION: Final = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "image_size": 28, "patch_size": 14,
}  # fmt: skip
_IMAGES: Final = {
    "text_config": {**_SIZES, **_GEMMA, "model_type": "gemma3_text"}, "vision_config": _VISION,
    "mm_tokens_per_image": 4, "image_token_index": 60, "boi_token_index": 61, "eoi_token_index": 62,
}  # fmt: skip
_EXPERTS: Final = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SMALL_EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT: Final = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "moe_intermediate_size": 32,
}  # fmt: skip
ACCEPTED: Final[Mapping[str, dict[str, Any]]] = {
    "llama": {}, "mistral": {"sliding_window": 16}, "mixtral": _EXPERTS, "qwen2": {}, "qwen3": _HEADS,
    "qwen2_moe": {**_SMALL_EXPERTS, "shared_expert_intermediate_size": 32}, "qwen3_moe": {**_HEADS, **_SMALL_EXPERTS},
    "gemma": _HEADS, "gemma2": _GEMMA, "gemma3_text": _GEMMA, "gemma3": _IMAGES, "gpt_oss": {**_SLIDING, **_EXPERTS},
    "phi": {}, "phi3": {}, "olmo": {}, "olmo2": {}, "olmo3": {}, "smollm3": {}, "glm": _HEADS, "glm4": _HEADS,
    "granite": {"logits_scaling": 3.0}, "granitemoe": {"logits_scaling": 3.0, **_EXPERTS}, "cohere": {},
    "cohere2": _SLIDING, "exaone4": {}, "deepseek_v3": _LATENT, "seed_oss": _HEADS, "ernie4_5": _HEADS,
    "helium": _HEADS, "arcee": {}, "apertus": {}, "hunyuan_v1_dense": _HEADS, "nemotron": {}, "stablelm": {},
    "starcoder2": {}, "gpt_bigcode": _GPT, "gpt2": _GPT, "gpt_neox": {}, "gptj": {**_GPT, "rotary_dim": 16},
    "falcon": {}, "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}  # fmt: skip
"""Model type -> what differs from `_SIZES` in its config."""
REFUSED: Final[Mapping[str, dict[str, Any]]] = {
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16}, "rwkv": {}, "jamba": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {
        **_SMALL_EXPERTS, "shared_expert_intermediate_size": 32, "layer_types": ["linear_attention", "full_attention"],
    },
    "llama4_text": {**_HEADS, "num_local_experts": 4, "intermediate_size_mlp": 64},
    "bloom": {"n_layer": 2, "n_head": 4}, "bert": {}, "t5": {},
}  # fmt: skip


def make(folder: Path, kind: str, dtype: torch.dtype = torch.bfloat16, seed: int = 0, **changes: Any) -> Path:
    """Write a small model of a type, with random weights, as `save_pretrained` writes it."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **(_SIZES | ACCEPTED.get(kind, REFUSED.get(kind, {})) | changes))
    auto: Any = AutoModelForCausalLM  # its methods carry no types
    if type(config) in auto._model_mapping:
        auto.from_config(config).to(dtype).save_pretrained(folder)
    else:  # a type that has no model of text alone
        config.save_pretrained(folder)
        save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    char_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a folder's file."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def configure(folder: Path, **changes: Any) -> None:
    """Change config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def _to(dtype: torch.dtype) -> Callable[[Path], object]:
    return lambda folder: rewrite(folder, lambda all_: all_.update({name: one.to(dtype) for name, one in all_.items()}))


def _rename_files(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


NORM: Final = "model.norm.weight"
FORMATS: Final[Mapping[str, Callable[[Path], object]]] = {
    "bfloat16 (safetensors)": lambda folder: None,
    "float16": lambda folder: make(folder, "llama", torch.float16),
    "float32": lambda folder: make(folder, "llama", torch.float32),
    "float64": _to(torch.float64),
    "GPTQ, AWQ": lambda folder: configure(folder, quantization_config={"quant_method": "gptq", "bits": 4}),
    "FP8": lambda folder: configure(folder, quantization_config={"quant_method": "fp8"}),
    "MXFP4 (gpt-oss as it comes)": lambda folder: configure(folder, quantization_config={"quant_method": "mxfp4"}),
    "bitsandbytes": lambda folder: configure(folder, quantization_config={"quant_method": "bitsandbytes"}),
    "FP8 without a word in config.json": _to(torch.float8_e4m3fn),
    "code of its own": lambda folder: configure(
        folder, model_type="mine", auto_map={"AutoModelForCausalLM": "mine.Mine"}
    ),
    "a type that is newer than the library": lambda folder: configure(folder, model_type="llama9"),
    "a weight that is NaN": lambda folder: rewrite(folder, lambda all_: all_[NORM].fill_(float("nan"))),
    "a tensor that is missing": lambda folder: rewrite(folder, lambda all_: all_.pop(NORM)),
    "an untied head that is missing": lambda folder: rewrite(folder, lambda all_: all_.pop("lm_head.weight")),
    "a tensor too many": lambda folder: rewrite(
        folder, lambda all_: all_.update({"v_head.summary.weight": torch.zeros(1, 64)})
    ),
    "a tensor of another shape": lambda folder: rewrite(
        folder, lambda all_: all_.update({NORM: torch.ones(32, dtype=torch.bfloat16)})
    ),
    "pickled weights": _rename_files,
}
"""What a folder of Llama's may be -> how it becomes so."""


def outcome(folder: Path) -> tuple[bool, list[str]]:
    """Return whether `init` takes a folder, and its remarks, or the sentence of the refusal, without paths and
    versions."""
    try:
        model_folder.check_importable(folder)
        taken, said = True, check_model(folder)
    except (BadModelFolder, NotFinetunable, BadSnapshot, LocalFault) as error:
        taken, said = False, [str(error)]
    plain = [one.replace(f"{folder}: ", "").replace(str(folder), "FOLDER") for one in said]
    return taken, [one.replace(transformers.__version__, "VERSION") for one in plain]


def kind_row(folder: Path, kind: str) -> str:
    """Return the table's row of a model type, whose folder is made."""
    taken, said = outcome(make(folder, kind))
    if not taken:
        return f"| `{kind}` | refused: {said[0]} |"
    engines = "transformers" if any("llama.cpp" in one for one in said) else "transformers, llama.cpp"
    padded = "; its rollouts are filled up to equal lengths" if any("fill up" in one for one in said) else ""
    return f"| `{kind}` | taken; nodes with {engines}{padded} |"


def format_row(folder: Path, name: str) -> str:
    """Return the table's row of a format."""
    FORMATS[name](make(folder, "llama"))
    taken, said = outcome(folder)
    return f"| {name} | {'; '.join(['taken', *said]) if taken else f'refused: {said[0]}'} |"


def rows(folder: Path) -> list[str]:
    """Return all rows of the table, each made by trying it."""
    kinds = [kind_row(folder / kind, kind) for kind in (*ACCEPTED, *REFUSED)]
    return [*kinds, *(format_row(folder / str(number), name) for number, name in enumerate(FORMATS))]


def with_rows(document: str, made: list[str]) -> str:
    """Return the document with the rows between the marking lines."""
    before, _, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the document has no {BEGIN} and {END}")
    cut = len(ACCEPTED) + len(REFUSED)
    kinds = ["| `model_type` | `init` |", "|---|---|", *made[:cut]]
    formats = ["| weights and folder | `init` |", "|---|---|", *made[cut:]]
    return "\n".join([f"{before}{BEGIN}", *kinds, "", *formats, f"{END}{after}"])


if __name__ == "__main__":
    page = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        page.write_text(with_rows(page.read_text(), rows(Path(place))))
