"""Turn a whole model's folder into one of a frozen base and an adapter (weights.lora.adapter_config), without torch.

1. The first adapter has A drawn evenly from +-1/sqrt(inputs), from a seed, and B = 0: version 0 is the base itself.
2. The default targets are the linear layers of attention and MLP, as far as the model has them.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from echo2.runtime.files import writing
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import bf16_of, import_model
from echo2.weights.lora.adapter_config import BASE_FILE, CONFIG, INNER_SUFFIX, AdapterConfig, adapter_shapes
from echo2.weights.lora.frozen_base import BaseFormat, write_base
from echo2.weights.snapshot import Snapshot, writing_snapshot

TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The default target modules."""
MODEL: Final = "model.safetensors"


class AdapterOrder(NamedTuple):
    """The adapter to make. `targets`: endings of module names; None: the default. `base`: format of the base."""

    rank: int
    alpha: float
    targets: Sequence[str] | None = None
    base: BaseFormat = "bfloat16"


def make_adapter(folder: Path, order: AdapterOrder, seed: int) -> None:
    """Turn `folder`, whose model.safetensors is a whole model. Raises BadSnapshot, DiskFull; the folder is then
    incomplete."""
    source = import_model(folder, folder / "whole.safetensors")
    modules = _targets(source, order.targets)
    endings = sorted({name.rpartition(".")[2] for name in modules})
    write_base(folder / BASE_FILE, source, order.base)
    _write_first(folder / MODEL, adapter_shapes(modules, order.rank), seed)
    config = AdapterConfig(r=order.rank, lora_alpha=order.alpha, target_modules=endings)
    with writing(folder / CONFIG) as file:
        file.write(msgspec.json.format(msgspec.json.encode(config), indent=2))
    source.path.unlink()


def _targets(source: Snapshot, wanted: Sequence[str] | None) -> Mapping[str, tuple[int, ...]]:
    """Return the target modules and the shapes of their weights. Raises BadSnapshot."""
    layers = {entry.name.removesuffix(".weight"): entry.shape for entry in source.tensors if len(entry.shape) == 2}
    chosen = {name: shape for name, shape in layers.items() if name.rpartition(".")[2] in (wanted or TARGETS)}
    present = {name.rpartition(".")[2] for name in chosen}
    lacking = [name for name in wanted or () if name not in present]
    if lacking or not chosen:
        there = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
        raise BadSnapshot(f"the model has no linear layer {(lacking or ['of the usual names'])[0]}; it has {there}")
    return chosen


def _write_first(path: Path, shapes: dict[str, tuple[int, int]], seed: int) -> None:
    """Write the first adapter (rule 1)."""
    table = [TensorEntry(name=name, dtype="BF16", shape=shapes[name]) for name in sorted(shapes)]
    random = np.random.Generator(np.random.Philox(seed))
    with writing_snapshot(path, table, {}) as writer:
        for entry in table:
            values = np.zeros(entry.elements, np.float32)
            if entry.name.endswith(INNER_SUFFIX):
                bound = 1 / math.sqrt(entry.shape[1])
                values = random.uniform(-bound, bound, entry.elements).astype(np.float32)
            writer.write(bf16_of(values.view(np.uint32)))
        writer.finish()
