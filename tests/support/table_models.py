"""A bigram table over the demo's characters as a run's model: folder, versions, payload. For engines without torch."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.tasks import tokenizer
from echo2.weights.diff import encode
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import nudged, random_table, write_table
from tests.support.tiny_model import TEXT


class TableModel(NamedTuple):
    """`rolling`: the weights' folder, at `old`. `payload`: leads to `new`."""

    folder: Path
    rolling: Path
    old: Snapshot
    new: Snapshot
    payload: Path


def make(folder: Path, share: float = 0.5) -> TableModel:
    """Make the model and a version in which `share` of the weights differs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "table", "vocab_size": TEXT.size}))
    tokenizer.char_tokenizer().save(str(folder / "tokenizer.json"))
    table: NDArray[np.float32] = 2 * random_table(7, TEXT.size)
    old, new = write_table(folder / "old", table), write_table(folder / "new", nudged(table, 1, share))
    encode(old, new, folder / "payload")
    Rolling.create(folder / "rolling", old)
    return TableModel(folder, folder / "rolling", old, new, folder / "payload")
