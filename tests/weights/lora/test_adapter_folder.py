"""A whole model's folder becomes one of a frozen base and an adapter."""

import json
from pathlib import Path

import numpy as np
import pytest

from echo2.weights.errors import BadSnapshot
from echo2.weights.lora.adapter_config import INNER_SUFFIX, OUTER_SUFFIX, read_config
from echo2.weights.lora.adapter_folder import TARGETS, AdapterOrder, make_adapter
from echo2.weights.snapshot import Snapshot
from tests.support import adapted, tiny_model


def test_the_first_adapter_changes_nothing_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    one, other = (Snapshot(adapted.make(tmp_path / name) / "model.safetensors") for name in ("one", "other"))
    assert one.root == other.root
    outer = [entry for entry in one.tensors if entry.name.endswith(OUTER_SUFFIX)]
    inner = [entry for entry in one.tensors if entry.name.endswith(INNER_SUFFIX)]
    assert len(outer) == len(inner) == 2 * len(TARGETS)
    assert not any(one.bits(entry.name).any() for entry in outer)
    assert all(len(np.unique(one.bits(entry.name))) > 20 for entry in inner)
    assert {entry.shape for entry in inner} == {(4, 64), (4, 128)}


def test_targets_may_be_named_and_stand_in_the_settings(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path, targets=["v_proj", "q_proj"])
    config = read_config(folder)
    assert config.target_modules == ["q_proj", "v_proj"]
    assert len(Snapshot(folder / "model.safetensors").tensors) == 2 * 2 * 2
    assert json.loads((folder / "adapter_config.json").read_text())["peft_type"] == "LORA", "PEFT reads it"
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".safetensors") == [
        "base.safetensors",
        "model.safetensors",
    ]


def test_a_target_that_the_model_lacks_is_refused_with_the_names_that_it_has(tmp_path: Path) -> None:
    whole = tiny_model.make(tmp_path)
    whole.snapshot.rename(tmp_path / "model.safetensors")
    with pytest.raises(BadSnapshot, match=r"no linear layer c_attn; it has .*q_proj"):
        make_adapter(tmp_path, AdapterOrder(4, 8.0, ["q_proj", "c_attn"]), seed=0)
