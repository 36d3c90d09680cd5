"""Read config.json of a model's folder, and refuse what cannot take part by what it says, before a model is made.

1. No code comes with a model: config.json names an architecture of the installed library, and an attention of it.
2. Weights are plain numbers: what is quantised cannot be trained, nor be stepped by a diff.
3. The model generates text from text, and every layer has full or sliding attention: keys and values of a row are all
   that a decode step needs (engines.transformers.row_cache), and a rollout can be scored beside others.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from echo2.engines.transformers.row_cache import FULL_ATTENTION, SLIDING_ATTENTION, kinds

MOST_LAYERS: Final = 1 << 14
_SUITABLE: Final = "use a model of Llama's, Qwen3's, Gemma's or another such family"
_PLAIN_WEIGHTS: Final = {
    "mxfp4": "save it in bfloat16 first (from_pretrained with Mxfp4Config(dequantize=True), then save_pretrained)",
    "fp8": "save it in bfloat16 first (from_pretrained with FineGrainedFP8Config(dequantize=True), then "
    "save_pretrained)",
}
"""Method of a quantisation -> what to do where its weights can be restored."""


class UnsuitableModel(Exception):
    """A model that cannot take part; the message is a sentence for its owner, which says what would work."""


def read(folder: Path) -> Any:
    """Return the config of a model that this library can build. Raises UnsuitableModel; other errors where a field has
    a value that the library does not expect."""
    stated = json.loads((folder / "config.json").read_bytes())
    if not isinstance(stated, dict):
        raise UnsuitableModel(f"{folder}/config.json is not a JSON object: download it again")
    _check_stated(stated)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    attention = str(getattr(config, "_attn_implementation", None))
    if "/" in attention:  # a repository of compiled code
        raise UnsuitableModel(
            f"its attention is {attention!r}, which is code that comes with a model and is never run: remove "
            "attn_implementation from config.json"
        )
    _check_layers(config)
    return config


def count_weight_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return the bytes of a model's weights, without making them."""
    auto: Any = AutoModelForCausalLM  # its methods carry no types
    with torch.device("meta"):
        parameters = auto.from_config(config, dtype=dtype, trust_remote_code=False).parameters()
        return sum(one.nbytes for one in parameters)


def _check_stated(stated: Mapping[str, Any]) -> None:
    texts = [stated, stated.get("text_config")]
    for one in texts:
        layers = one.get("num_hidden_layers") if isinstance(one, dict) else None
        if isinstance(layers, int) and layers > MOST_LAYERS:  # even the lists of a config would fill the memory
            raise UnsuitableModel(f"config.json states {layers:,} layers, more than {MOST_LAYERS:,}: download it again")
        quantised = one.get("quantization_config") if isinstance(one, dict) else None
        if quantised:
            method = str(quantised.get("quant_method")) if isinstance(quantised, dict) else "?"
            advice = _PLAIN_WEIGHTS.get(method, "name the model in bfloat16 or float32 from which it was made")
            raise UnsuitableModel(f"its weights are quantised ({method}) and cannot be trained: {advice}")
    kind = stated.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        what = f"{kind!r} is not a model type of transformers {transformers.__version__}"
        if stated.get("auto_map"):
            raise UnsuitableModel(f"{what}, and code that comes with a model (auto_map) is never run: {_SUITABLE}")
        raise UnsuitableModel(f"{what}: update transformers if the type is newer, or {_SUITABLE}")


def _check_layers(config: Any) -> None:
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)  # one class for a type of text
    text = config.get_text_config()
    if model is None or text.is_encoder_decoder:
        raise UnsuitableModel(
            f"a model of type {config.model_type} does not generate text from nothing but text: {_SUITABLE}"
        )
    unknown = sorted(set(kinds(text)) - {FULL_ATTENTION, SLIDING_ATTENTION})
    if unknown or getattr(model, "_is_stateful", False):
        what = f"layers of {' and '.join(unknown)}" if unknown else "layers that keep a state"
        raise UnsuitableModel(
            f"{model.__name__} has {what}, where each must have full or sliding attention: {_SUITABLE}"
        )
