"""Make the folder of a run whose model is one tensor of numbers, so that it needs neither torch nor a real model.

Keys, Root, RunSpec, tokenizer and settings are those that `echo2-coord init` makes. The tensor is real, in bf16.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, char_tokenizer
from echo2.weights.documents import TensorEntry
from echo2.weights.snapshot import Snapshot, writing_snapshot

ENGINE: Final = "stub"
"""The engine class that these runs admit."""
_TENSOR: Final = "table"


def make_run(folder: Path, *, now: int, **sections: Mapping[str, Any]) -> Run:
    """Make the run folder `folder`. `now`: ms. `sections`: settings that replace the ones here, by section. Raises
    `LocalFault`."""
    ours: dict[str, dict[str, Any]] = {
        "run": {"task": "reverse", "group_size": 2, "batch_groups": 10, "limit": 6, "staleness": 4, "heldout": 4},
        "https": {"listen": []},
        "network": {"listen": ["/ip4/127.0.0.1/tcp/0"]},
    }
    ours["run"]["engines"] = (ENGINE,)
    for name, values in sections.items():
        ours.setdefault(name, {}).update(values)
    with tempfile.TemporaryDirectory(prefix="echo2-model-") as model_folder:
        model = Path(model_folder) / "table"
        make_model(model)
        config = setup.settings_for(str(model), ours, env={})
        return setup.init(folder, str(model), config, now=now)


def make_model(folder: Path) -> None:
    """Make a model folder with the files that a model hub has: configuration, tokenizer, weights."""
    folder.mkdir(parents=True)
    config = {"model_type": "table", "vocab_size": CHAR_SIZE, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    char_tokenizer().save(str(folder / "tokenizer.json"))
    write_weights(folder / "model.safetensors", 0)


def write_weights(path: Path, version: int, elements: int = 4096) -> Snapshot:
    """Write a snapshot of one tensor. A version differs from version 0 in about 5 % of the elements, and from any other
    version in about 10 %."""
    bits = np.random.default_rng(0).integers(0, 1 << 14, elements).astype("<u2")
    if version:
        changed = np.random.default_rng(version)
        bits[changed.random(elements) < 0.05] ^= np.uint16(1 + version % 3)
    entry = TensorEntry(name=_TENSOR, dtype="BF16", shape=(elements,))
    with writing_snapshot(path, [entry], {}) as writer:
        writer.write(bits)
        writer.finish()
    return Snapshot(path)
