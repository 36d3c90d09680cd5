"""A model folder written by hand and a run made from it: no torch, no child process."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, char_tokenizer
from echo2.weights.lora.adapter_folder import AdapterOrder

NOW = 1_800_000_000_000


def write_model(folder: Path, tensor: str = "weight", shape: tuple[int, ...] = (2,)) -> Path:
    """Write a minimal model folder: one tensor of float32, its values 1, -2, 1, -2 ..."""
    folder.mkdir(parents=True)
    config = {"model_type": "qwen3", "vocab_size": CHAR_SIZE, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    char_tokenizer().save(str(folder / "tokenizer.json"))
    data = struct.pack("<2f", 1.0, -2.0) * (math.prod(shape) // 2)
    header = json.dumps({tensor: {"dtype": "F32", "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder


def make_run(
    folder: Path,
    model: Path,
    secret: str | None = None,
    engines: tuple[str, ...] | None = None,
    settings: Mapping[str, object] = MappingProxyType({}),
    adapter: AdapterOrder | None = None,
) -> Run:
    """Make a run folder as `echo2-coord init` does. `engines`: the admitted classes; None: the default ones.
    `settings`: by section, beside `run`."""
    section = {"name": "a run", "task": "reverse"} | ({} if engines is None else {"engines": engines})
    config = setup.settings_for(str(model), {"run": section, **settings}, env={})
    return setup.init(folder, str(model), config, now=NOW, secret=secret, adapter=adapter)


def load(folder: Path) -> Run:
    """Load a run at the time `NOW`, without settings from the environment."""
    return setup.load_run(folder, env={}, now=NOW)
