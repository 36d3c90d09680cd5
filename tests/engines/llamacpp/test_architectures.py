import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import architectures
from echo2.engines.llamacpp.architectures import describe, read

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LlamaConfig(vocab_size=48), "llama"),
        (Qwen2Config(vocab_size=48), "qwen2"),
        (Qwen3Config(vocab_size=48, head_dim=16), "qwen3"),
    ],
    ids=["llama", "qwen2", "qwen3"],
)
def test_a_config_as_transformers_writes_it_is_read(config: Any, name: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    architecture = read(tmp_path)
    assert architecture.name == name
    assert architecture.keys[f"{name}.vocab_size"] == 48
    assert architecture.keys[f"{name}.rope.freq_base"] == config.rope_parameters["rope_theta"]
    assert architecture.sizes["kept"] == config.num_key_value_heads * architecture.sizes["head"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"model_type": "gemma3_text"}, "this one is of type gemma3_text"),
    "no architecture": ({"model_type": None}, "this one is of type None"),
    "an activation that is not carried over": ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "a sliding window": ({"use_sliding_window": True}, "use_sliding_window = True"),
    "weights that are quantised": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "a part of each head that rotates": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "rotation stretched in another way": (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4}},
        "rope_type 'dynamic'",
    ),
    "rotation stretched otherwise than llama.cpp does": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4, "attention_factor": 2.0}},
        "with attention_factor = 2.0",
    ),
    "an odd head": ({"head_dim": 7}, "heads of 7 elements cannot be rotated"),
    "more layers than memory has names for": ({"num_hidden_layers": 10**9}, r"num_hidden_layers = 1000000000: .* 1 to"),
    "a size that 32 bits cut to another": ({"vocab_size": 2**32 + 48}, "vocab_size = 4294967344"),
    "heads by which nothing can be divided": ({"num_attention_heads": 0}, "another form: ZeroDivisionError"),
    "heads below none": ({"num_key_value_heads": -2}, "num_key_value_heads = -2"),
    "a head that takes all memory": ({"head_dim": 2**33}, "head_dim = 8589934592"),
    "a size without end": ({"intermediate_size": math.inf}, "another form: OverflowError"),
    "an epsilon at which llama.cpp aborts": ({"rms_norm_eps": -1.0}, "rms_norm_eps = -1.0"),
    "an epsilon that is no number": ({"rms_norm_eps": math.nan}, "rms_norm_eps = nan"),
    "a rotation without end": ({"rope_theta": math.inf}, "rope_theta = inf"),
    "a size that is missing": ({"hidden_size": None}, "lacks a size"),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_llama_cpp_would_compute_otherwise_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        describe({**LLAMA, **changes})


@pytest.mark.parametrize(("content", "sentence"), [("{", "cannot be read"), ("[]", "is no object"), (None, "has no")])
def test_a_config_that_is_none_is_refused(content: str | None, sentence: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(EngineError, match=sentence):
        read(tmp_path)


def test_rows_of_a_llama_head_stand_in_pairs_and_those_of_qwen_as_they_are() -> None:
    llama = describe(LLAMA)
    names = llama.tensors()
    rows = llama.source("blk.1.attn_k.weight", names).rows
    assert rows.tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert llama.source("blk.1.attn_v.weight", names).rows is None
    qwen = describe({**LLAMA, "model_type": "qwen3"})
    assert qwen.source("blk.1.attn_k.weight", qwen.tensors()).rows is None


def test_what_a_model_lacks_is_filled_so_that_it_changes_nothing() -> None:
    architecture = describe(LLAMA)
    has = {"model.embed_tokens.weight", "model.norm.weight"}
    assert architecture.source("output.weight", has).name == "model.embed_tokens.weight"
    assert architecture.source("blk.0.attn_q.bias", has).values == 0.0
    assert architecture.source("blk.0.ffn_up.scale", has).values == 1.0
    assert np.array_equal(np.asarray(architecture.source("rope_freqs.weight", has).values), np.ones(4, np.float32))
    with pytest.raises(EngineError, match=r"asks for the tensor blk\.0\.attn_q\.weight"):
        architecture.source("blk.0.attn_q.weight", has)
    loose = architecture._replace(tied=False)
    with pytest.raises(EngineError, match=r"output\.weight"):
        loose.source("output.weight", has)


def test_the_rotation_of_llama_3_is_that_of_transformers() -> None:
    rope = {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=rope, max_position_embeddings=131072)
    plain = LlamaConfig(
        hidden_size=512, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    stretched, straight = LlamaRotaryEmbedding(config).inv_freq, LlamaRotaryEmbedding(plain).inv_freq
    factors = describe({**LLAMA, "head_dim": 128, "rope_parameters": rope}).rope_factors
    assert torch.allclose(torch.from_numpy(factors), straight / stretched, rtol=1e-5)


def test_a_rotation_stretched_evenly_is_a_key() -> None:
    keys = describe({**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}).keys
    assert (keys["llama.rope.scaling.type"], keys["llama.rope.scaling.factor"]) == ("linear", 2.0)


def test_a_context_that_is_longer_by_yarn_is_three_keys() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e6}
    keys = describe({**LLAMA, "rope_parameters": rope}).keys
    said = {key.removeprefix("llama.rope.scaling."): keys[key] for key in keys if ".scaling." in key}
    assert said == {"type": "yarn", "factor": 4.0, "original_context_length": 64}
    with pytest.raises(EngineError, match="lacks a size"):
        describe({**LLAMA, "rope_parameters": rope | {"original_max_position_embeddings": None}})


def test_each_tensor_has_a_shape_and_each_matrix_a_name() -> None:
    architecture = describe(LLAMA)
    shapes = architecture.tensors()
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (16, 32)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (32, 64)
    assert shapes["model.layers.0.mlp.gate_proj.bias"] == (64,)
    assert len(architecture.matrices()) == 2 + 2 * 7
    assert json.dumps(architectures.describe(LLAMA).keys)
