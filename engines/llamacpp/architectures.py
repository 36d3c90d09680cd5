"""Describe a model to llama.cpp: from config.json to its keys, and from each of its tensors to the model's own.

Rules
1. The model types llama, qwen2 and qwen3 are known. A setting of config.json that would change what
   they compute, and that is not carried over, is refused by name.
2. llama.cpp turns neighbouring elements of a Llama head, transformers those half a head apart: the rows of its q and k
   are permuted. Qwen's stand as they are.
3. llama.cpp asks for tensors that a model may lack: a tied output layer is the embedding, scales are 1, biases and the
   classifier's head are 0, and rope's factors are those of config.json, else 1. Any other lack is refused.
"""

import json
import math
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.engines.engine import EngineError

KNOWN_MODEL_TYPES: Final = ("llama", "qwen2", "qwen3")
"""Values of `model_type`, by which transformers too chooses the model; llama.cpp uses the same names."""
_NEUTRAL_SETTINGS: Final[dict[str, tuple[object, ...]]] = {
    "hidden_act": ("silu",), "partial_rotary_factor": (None, 1.0), "use_sliding_window": (None, False),
    "quantization_config": (None,), "attn_logit_softcapping": (None,), "final_logit_softcapping": (None,),
}  # fmt: skip
"""Setting -> the values that change nothing."""
_NEUTRAL_YARN: Final[dict[str, tuple[object, ...]]] = {
    "attention_factor": (None,), "mscale": (None,), "mscale_all_dim": (None,), "truncate": (None, True),
    "beta_fast": (None, 32), "beta_slow": (None, 1),
}  # fmt: skip
_WIDTHS: Final = ("hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
_MOST_SIZE: Final = (1 << 31) - 1
"""llama.cpp keeps sizes in 32 bits: a greater one would be cut to another size without a word."""
_MOST_PARTS: Final = 1 << 14
"""Most layers, heads, and elements of a head."""
_FILLED_TENSORS: Final = ((r".*\.(scale|input_scale)", 1.0), (r".*\.bias", 0.0), (r"cls\..*", 0.0))
_LAYER: Final = {
    "attn_q": ("self_attn.q_proj", ("queries", "width")), "attn_k": ("self_attn.k_proj", ("kept", "width")),
    "attn_v": ("self_attn.v_proj", ("kept", "width")), "attn_output": ("self_attn.o_proj", ("width", "queries")),
    "attn_q_norm": ("self_attn.q_norm", ("head",)), "attn_k_norm": ("self_attn.k_norm", ("head",)),
    "attn_norm": ("input_layernorm", ("width",)), "ffn_norm": ("post_attention_layernorm", ("width",)),
    "ffn_gate": ("mlp.gate_proj", ("inner", "width")), "ffn_up": ("mlp.up_proj", ("inner", "width")),
    "ffn_down": ("mlp.down_proj", ("width", "inner")),
}  # fmt: skip
"""llama.cpp's name within a layer -> the model's, and the shape by `Architecture.sizes`."""
_WHOLE_TENSORS: Final = {
    "token_embd.weight": ("model.embed_tokens.weight", ("vocabulary", "width")),
    "output_norm.weight": ("model.norm.weight", ("width",)),
    "output.weight": ("lm_head.weight", ("vocabulary", "width")),
}


class TensorSource(NamedTuple):
    """The source of a tensor of llama.cpp. `name`: the model's tensor. `rows`: the model's row for each of llama.cpp's
    rows, None: in order. Without a name, `values`: a number for all elements, or one per element."""

    name: str | None = None
    rows: NDArray[np.int64] | None = None
    values: float | NDArray[np.float32] = 0.0


class Architecture(NamedTuple):
    """A model as llama.cpp sees it. `keys`: its GGUF keys. `sizes`: those that shapes are made of. `tied`: whether the
    output layer is the embedding."""

    name: str
    keys: Mapping[str, str | int | float]
    sizes: Mapping[str, int]
    rope_factors: NDArray[np.float32]
    tied: bool

    @property
    def cached(self) -> int:
        """The elements of keys and values that one token takes."""
        return 2 * self.sizes["layers"] * self.sizes["kept"]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor that the model may have, by its own name."""
        shapes = {name: shape for name, shape in _WHOLE_TENSORS.values()}
        for layer in range(self.sizes["layers"]):
            for name, shape in _LAYER.values():
                shapes[f"model.layers.{layer}.{name}.weight"] = shape
                shapes[f"model.layers.{layer}.{name}.bias"] = shape[:1]
        return {name: tuple(self.sizes[size] for size in shape) for name, shape in shapes.items()}

    def matrices(self) -> list[str]:
        """Return llama.cpp's names of the tensors that are matrices."""
        layers = [f"blk.{layer}.{name}.weight" for layer in range(self.sizes["layers"]) for name in _matrices(_LAYER)]
        return [*_matrices(_WHOLE_TENSORS), *layers]

    def file_tensors(self, has: Container[str]) -> Iterator[tuple[str, TensorSource]]:
        """Yield the tensors that a GGUF file of the model has, by llama.cpp's name, with what fills them. `has`: the
        names of the model's tensors."""
        parts = [f"{part}.{kind}" for part in _LAYER for kind in ("weight", "bias")]
        names = [*_WHOLE_TENSORS, *(f"blk.{layer}.{part}" for layer in range(self.sizes["layers"]) for part in parts)]
        for name in names:
            if _own_name(name)[0] in has and not (name == "output.weight" and self.tied):
                yield name, self.source(name, has)
        if (self.rope_factors != 1).any():
            yield "rope_freqs.weight", TensorSource(values=self.rope_factors)

    def source(self, tensor: str, has: Container[str]) -> TensorSource:
        """Return what fills `tensor`, by llama.cpp's name. `has`: the names of the model's tensors. Raises EngineError
        (rule 3)."""
        if tensor == "rope_freqs.weight":
            return TensorSource(values=self.rope_factors)
        own, part = _own_name(tensor)
        if tensor == "output.weight" and own not in has and self.tied:
            own, _ = _own_name("token_embd.weight")
        if own in has:
            return TensorSource(own, self._rows(part))
        for pattern, value in _FILLED_TENSORS:
            if re.fullmatch(pattern, tensor):
                return TensorSource(values=value)
        raise EngineError(f"llama.cpp's {self.name} asks for the tensor {tensor}, which this model does not have")

    def _rows(self, part: str) -> NDArray[np.int64] | None:
        if self.name != "llama" or part not in ("attn_q", "attn_k"):
            return None
        head, rows = self.sizes["head"], self.sizes["queries" if part == "attn_q" else "kept"]
        return np.arange(rows).reshape(-1, 2, head // 2).swapaxes(1, 2).reshape(-1)


def _own_name(tensor: str) -> tuple[str, str]:
    """Return the model's name of a tensor of llama.cpp, and its part of a layer; empty where there is none."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", tensor)
    if layer is None or layer[2] not in _LAYER:
        return _WHOLE_TENSORS.get(tensor, ("", ()))[0], ""
    return f"model.layers.{layer[1]}.{_LAYER[layer[2]][0]}.{layer[3]}", layer[2]


def _matrices(table: Mapping[str, tuple[str, tuple[str, ...]]]) -> list[str]:
    return [name for name, (_, shape) in table.items() if len(shape) == 2]


def read(folder: Path) -> Architecture:
    """Read config.json of a model folder. Raises EngineError (rule 1)."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError as error:
        raise EngineError(f"{folder} has no config.json: give the folder of a model") from error
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{folder}/config.json cannot be read ({error}): fetch it again") from error
    if not isinstance(config, dict):
        raise EngineError(f"{folder}/config.json is no object: fetch it again")
    return describe(config)


def describe(config: Mapping[str, Any]) -> Architecture:
    """Describe a model by its config.json. Raises EngineError (rule 1)."""
    name = config.get("model_type")
    if name not in KNOWN_MODEL_TYPES:
        raise EngineError(
            f"the engine llamacpp knows models of type {', '.join(KNOWN_MODEL_TYPES)}; this one is of type {name}"
        )
    for setting, neutral in _NEUTRAL_SETTINGS.items():
        if config.get(setting) not in neutral and (setting in config or None not in neutral):
            raise EngineError(f"the engine llamacpp cannot compute {setting} = {config.get(setting)!r}")
    try:
        return _describe_model(name, config)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise EngineError(f"config.json lacks a size, or states it in another form: {error!r}") from error


def _describe_model(name: str, config: Mapping[str, Any]) -> Architecture:
    heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
    kv_heads, head = int(config.get("num_key_value_heads") or heads), int(config.get("head_dim") or width // heads)
    layers, epsilon = int(config["num_hidden_layers"]), float(config["rms_norm_eps"])
    _check_sizes({"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head,
                  "num_hidden_layers": layers}, _MOST_PARTS)  # fmt: skip
    _check_sizes({key: int(config[key]) for key in _WIDTHS}, _MOST_SIZE)
    if head % 2:
        raise EngineError(f"heads of {head} elements cannot be rotated: llama.cpp needs an even number")
    rope = _rope(config)
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    if not (0 <= epsilon < math.inf and 0 < base < math.inf):
        raise EngineError(f"the engine llamacpp cannot compute rms_norm_eps = {epsilon!r} with rope_theta = {base!r}")
    sizes = {
        "context_length": int(config["max_position_embeddings"]), "embedding_length": width,
        "block_count": layers, "feed_forward_length": int(config["intermediate_size"]),
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
        "attention.value_length": head, "rope.dimension_count": head, "vocab_size": int(config["vocab_size"]),
        "rope.freq_base": base, "attention.layer_norm_rms_epsilon": epsilon,
    }  # fmt: skip
    keys: dict[str, str | int | float] = {f"{name}.{key}": value for key, value in sizes.items()}
    keys |= {"general.architecture": name, "tokenizer.ggml.model": "no_vocab"}
    factors = np.ones(head // 2, np.float32)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "linear":
        keys |= {f"{name}.rope.scaling.type": "linear", f"{name}.rope.scaling.factor": float(rope["factor"])}
    elif kind == "yarn":
        keys |= _yarn(name, rope)
    elif kind == "llama3" and name == "llama":
        factors = _llama3_factors(rope, base, head)
    elif kind != "default":
        raise EngineError(f"the engine llamacpp cannot compute rope_type {kind!r} of a {name} model")
    return Architecture(
        name=name,
        keys=keys,
        sizes={
            "vocabulary": int(config["vocab_size"]), "layers": layers, "width": width,
            "queries": heads * head, "kept": kv_heads * head, "head": head, "inner": int(config["intermediate_size"]),
        },
        rope_factors=factors,
        tied=bool(config.get("tie_word_embeddings")),
    )  # fmt: skip


def _check_sizes(sizes: Mapping[str, int], most: int) -> None:
    for name, size in sizes.items():
        if not 1 <= size <= most:
            raise EngineError(f"config.json has {name} = {size}: the engine llamacpp takes 1 to {most:,}")


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise TypeError(rope)
    return rope


def _yarn(name: str, rope: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return the keys of a longer context by YaRN, whose further settings are llama.cpp's own. Raises EngineError."""
    for setting, neutral in _NEUTRAL_YARN.items():
        if rope.get(setting) not in neutral:
            raise EngineError(f"the engine llamacpp cannot compute rope_type 'yarn' with {setting} = {rope[setting]!r}")
    return {
        f"{name}.rope.scaling.type": "yarn", f"{name}.rope.scaling.factor": float(rope["factor"]),
        f"{name}.rope.scaling.original_context_length": int(rope["original_max_position_embeddings"]),
    }  # fmt: skip


def _llama3_factors(rope: Mapping[str, Any], base: float, head: int) -> NDArray[np.float32]:
    """Return by how much each rotation is slowed down, as in transformers' `modeling_rope_utils`."""
    cycles = float(rope["original_max_position_embeddings"]) / (2 * math.pi) * base ** -(np.arange(0, head, 2) / head)
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    smooth = np.clip((cycles - low) / (high - low), 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / float(rope["factor"]) + smooth), np.float32)
