"""A model folder written by hand and a run made from it: no torch, no child process."""

import json
import shutil
import struct
from pathlib import Path

import pytest

from coordinator import setup
from coordinator.setup import Run
from tasks.text import CHAR_SIZE, EOS, char_tokenizer

NOW = 1_800_000_000_000


def write_model(folder: Path) -> Path:
    """The least that is a model folder: one tensor of two float32."""
    folder.mkdir(parents=True)
    config = {"model_type": "qwen3", "vocab_size": CHAR_SIZE, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    char_tokenizer().save(str(folder / "tokenizer.json"))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.0, -2.0))
    return folder


def make_run(folder: Path, model: Path, secret: str | None = None) -> Run:
    config = setup.settings_for(str(model), {"run": {"name": "a run", "task": "reverse"}}, env={})
    return setup.init(folder, str(model), config, now=NOW, secret=secret)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture(scope="session")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    return make_run(place / "run", write_model(place / "model")).folder.path


@pytest.fixture
def home(_made_once: Path, tmp_path: Path) -> Path:
    """A run folder of this test's own, and whole."""
    copy: Path = shutil.copytree(_made_once, tmp_path / "run")
    return copy
