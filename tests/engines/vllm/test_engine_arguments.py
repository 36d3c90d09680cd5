"""Test vLLM's configuration: the rule from seeds to tokens fixes its part, whatever a model's folder says."""

import json
import os
from pathlib import Path

import pytest
import torch

from echo2.engines.engine import EngineError
from echo2.engines.vllm import engine_arguments
from tests.support import vllm_models

pytestmark = pytest.mark.filterwarnings("default")


@vllm_models.needed
def test_what_would_change_the_choice_of_a_token_is_fixed(tmp_path: Path) -> None:
    engine_arguments.prepare()
    model = vllm_models.make(tmp_path)
    (model.folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.9}))
    config = engine_arguments.configuration(model.folder, "cpu", "bfloat16", 3)
    assert config.model_config.logprobs_mode == "raw_logprobs"
    assert config.model_config.generation_config == "vllm"
    assert config.model_config.logits_processors == ["echo2.engines.vllm.noise_v1:SeededNoise"]
    assert config.model_config.architectures == ["Qwen3ForCausalLM"]
    assert config.model_config.head_dtype == torch.float32
    assert (config.scheduler_config.async_scheduling, config.speculative_config) == (
        False,
        None,
    )
    assert (config.scheduler_config.max_num_seqs, config.cache_config.enable_prefix_caching) == (3, True)
    assert config.weight_transfer_config.backend == "echo2"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"


@vllm_models.needed
@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_folder_without_a_configuration_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(EngineError, match=r"has no config\.json that can be read"):
        engine_arguments.configuration(tmp_path, "cpu", "float32", None)


@pytest.mark.parametrize("name", ["VLLM_LOGGING_LEVEL", "VLLM_ENABLE_V1_MULTIPROCESSING"])
def test_what_an_owner_has_set_stays_but_for_the_process_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in engine_arguments.ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "1")
    engine_arguments.prepare()
    assert os.environ[name] == ("1" if name == "VLLM_LOGGING_LEVEL" else "0")
