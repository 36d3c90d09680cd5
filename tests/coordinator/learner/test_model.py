"""A model folder that cannot be loaded is refused with the fix."""

from pathlib import Path

import pytest

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
