"""A model folder written by hand and a run made from it: no torch, no child process."""

import json
import struct
from pathlib import Path

from coordinator.run import setup
from coordinator.run.setup import Run
from tasks.tokenizer import CHAR_SIZE, EOS, char_tokenizer

NOW = 1_800_000_000_000


def write_model(folder: Path) -> Path:
    """Write a minimal model folder: one tensor of two float32."""
    folder.mkdir(parents=True)
    config = {"model_type": "qwen3", "vocab_size": CHAR_SIZE, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    char_tokenizer().save(str(folder / "tokenizer.json"))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.0, -2.0))
    return folder


def make_run(folder: Path, model: Path, secret: str | None = None) -> Run:
    """Make a run folder as `echo2-coord init` does."""
    config = setup.settings_for(str(model), {"run": {"name": "a run", "task": "reverse"}}, env={})
    return setup.init(folder, str(model), config, now=NOW, secret=secret)


def load(folder: Path) -> Run:
    """Load a run at the time `NOW`, without settings from the environment."""
    return setup.load_run(folder, env={}, now=NOW)
