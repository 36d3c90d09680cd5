"""A model folder that cannot be loaded is refused with the fix."""

import weakref
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import nn

from echo2.coordinator.learner import model
from echo2.weights.errors import BadSnapshot
from echo2.weights.lora.adapter_config import CONFIG, INNER_SUFFIX, OUTER_SUFFIX, PREFIX
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import save_model
from tests.support import adapted

BAD_FOLDERS = {
    "nothing in it": ([], "no config.json"),
    "a config alone": (["config.json"], "neither model.safetensors"),
    "pickled weights": (["config.json", "pytorch_model.bin"], "pickled weights are never read"),
}


@pytest.mark.parametrize("sentence", BAD_FOLDERS)
def test_the_error_for_a_folder_without_a_model_names_the_fix(sentence: str, tmp_path: Path) -> None:
    names, message = BAD_FOLDERS[sentence]
    for name in names:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(model.BadModelFolder, match=message):
        model.load(tmp_path, "cpu")


def test_the_error_for_an_unknown_architecture_names_the_fix(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    (tmp_path / "model.safetensors").write_bytes((model_folder / "model.safetensors").read_bytes())
    with pytest.raises(model.BadModelFolder, match="update transformers"):
        model.load(tmp_path, "cpu")


def test_a_model_that_the_library_loads_is_not_in_memory_a_second_time(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    stored = load_file(model_folder / "model.safetensors")
    save_file({f"base.{name}": bits for name, bits in stored.items()}, tmp_path / "model.safetensors")
    allocate, by_library = model.allocate, model._by_library
    first: list[weakref.ref[nn.Parameter]] = []
    left: list[nn.Parameter | None] = []

    def note(unfilled: nn.Module, device: str) -> None:
        allocate(unfilled, device)
        first.extend(map(weakref.ref, unfilled.parameters()))

    def look(*arguments: Any) -> Any:
        left.extend(one() for one in first)
        return by_library(*arguments)

    monkeypatch.setattr(model, "allocate", note)
    monkeypatch.setattr(model, "_by_library", look)
    with pytest.raises(model.BadModelFolder, match="lacks"):
        model.load(tmp_path, "cpu")
    assert left
    assert not any(one is not None for one in left)


def test_of_a_folder_with_an_adapter_the_adapter_alone_is_trained_and_published(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path)
    policy = model.load(folder, "cpu")
    trained = {name for name, one in policy.named_parameters() if one.requires_grad}
    assert trained
    assert all(name.endswith((INNER_SUFFIX, OUTER_SUFFIX)) for name in trained)
    snapshot = save_model(policy, tmp_path / "version")
    assert snapshot.root == Snapshot(folder / "model.safetensors").root, "version 0 is the first adapter"
    assert {entry.name for entry in snapshot.tensors} == {f"{PREFIX}{name}" for name in trained}


def test_a_folder_whose_adapter_is_of_another_base_is_refused(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path)
    (folder / CONFIG).write_text("{}")
    with pytest.raises(BadSnapshot, match=CONFIG):
        model.load(folder, "cpu")
