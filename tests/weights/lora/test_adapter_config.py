"""The settings and names of an adapter."""

from pathlib import Path

import pytest

from echo2.weights.errors import BadSnapshot
from echo2.weights.lora.adapter_config import CONFIG, AdapterConfig, adapter_shapes, read_config

CONFIGURED = AdapterConfig(r=4, lora_alpha=8.0, target_modules=["q_proj", "up_proj"])


def test_a_folder_without_settings_has_versions_that_are_whole_models(tmp_path: Path) -> None:
    assert read_config(tmp_path) is None


def test_settings_are_read_in_peft_s_words_and_fields_of_others_are_ignored(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(
        '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"], "lora_dropout": 0.1}'
    )
    assert read_config(tmp_path) == CONFIGURED
    assert CONFIGURED.scaling == 2.0


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"r": 0, "lora_alpha": 8, "target_modules": ["q"]}', '{"r": 4, "lora_alpha": 8, "target_modules": []}',
     '{"r": 4, "lora_alpha": -1, "target_modules": ["q"]}', '{"r": 4, "target_modules": ["q"]}',
     '{"peft_type": "IA3", "r": 4, "lora_alpha": 8, "target_modules": ["q"]}', '{"r": "\\ud800"}'],
)  # fmt: skip
def test_settings_that_describe_no_adapter_are_refused_with_the_file_s_name(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(BadSnapshot, match=CONFIG):
        read_config(tmp_path)


def test_targets_are_modules_by_the_last_part_of_their_names() -> None:
    names = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "model.layers.0.mlp.gup_proj", "q_proj.x"]
    assert CONFIGURED.targets(names) == names[:2]


def test_tensors_have_peft_s_names_and_the_shapes_of_a_product() -> None:
    assert adapter_shapes({"m.q_proj": (64, 32)}, 4) == {
        "base_model.model.m.q_proj.lora_A.weight": (4, 32),
        "base_model.model.m.q_proj.lora_B.weight": (64, 4),
    }
