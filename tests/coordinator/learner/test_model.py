"""A model folder that cannot be loaded is refused with the fix."""

from pathlib import Path

import pytest

from coordinator.learner import model

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
