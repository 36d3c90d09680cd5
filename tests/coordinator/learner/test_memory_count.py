"""Bytes that are counted on tensors without content are those of real ones."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from echo2.coordinator.learner.memory_count import build, count_folder, kept_bytes
from echo2.coordinator.learner.model import BadModelFolder
from tests.support.tiny_learner import make_model

TOKENS = 1024


@pytest.mark.slow_but("float32")
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_tensors_without_content_are_counted_as_real_ones(tmp_path: Path, kind: str) -> None:
    folder = make_model(
        tmp_path / "model", num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8
    )
    counted = count_folder(folder, kind)
    real = kept_bytes(build(AutoConfig.from_pretrained(folder), getattr(torch, kind)), TOKENS)
    assert (counted.layers, counted.again, counted.layer) == pytest.approx(tuple(real), rel=0.01)
    width = 4 if kind == "float32" else 2
    assert counted.again < counted.layers / 4
    assert counted.again >= 3 * width * 32, "each layer's input"
    assert counted.layer * 3 < counted.layers < counted.layer * 4


def test_a_folder_whose_model_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModelFolder, match=r"has no config\.json"):
        count_folder(tmp_path, "bfloat16")
    (tmp_path / "config.json").write_text('{"model_type": "nothing known"}')
    with pytest.raises(BadModelFolder, match="cannot be counted"):
        count_folder(tmp_path, "bfloat16")
