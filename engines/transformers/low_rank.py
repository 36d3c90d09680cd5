"""Low-rank adapters (LoRA) in a transformers model: a frozen base, and a small product beside each target layer.

Rules
1. A model is adapted by its folder, in the form of `weights.lora.adapter_config`. A folder without its settings file
   has versions that are whole models, and nothing is done.
2. The base is frozen: it takes no gradient, and no version changes it. A quantised base is restored to the model's own
   type, so that every engine and the learner compute with the same numbers, but for that type's rounding.
3. The adapter has the type that the engine computes with. Its product is added, never merged: in 16-bit types a merged
   weight would lose most of a small change.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from echo2.engines.batch import float16_range
from echo2.weights.errors import BadSnapshot
from echo2.weights.lora.adapter_config import BASE_FILE, AdapterConfig, read_config
from echo2.weights.lora.frozen_base import FrozenBase


class LowRankLinear(nn.Module):
    """`plain` with a product of two small matrices beside it: plain(x) + scaling * B(A(x))."""

    def __init__(self, plain: nn.Linear, rank: int, scaling: float) -> None:
        super().__init__()
        kind: dict[str, Any] = {"device": plain.weight.device, "dtype": plain.weight.dtype}
        self.base = plain.requires_grad_(False)
        self.lora_A = nn.Linear(plain.in_features, rank, bias=False, **kind)
        self.lora_B = nn.Linear(rank, plain.out_features, bias=False, **kind)
        self.scaling = scaling

    def forward(self, rows: Tensor) -> Tensor:
        """Compute the product: [..., in_features] -> [..., out_features]."""
        product: Tensor = self.base(rows) + self.lora_B(self.lora_A(rows) * self.scaling)
        return product


def adapt(model: nn.Module, folder: Path) -> AdapterConfig | None:
    """Load the frozen base of `folder` into a model just built, and put adapters beside its target layers; their
    values are still random. Returns the adapter's settings, None: rule 1. Raises BadSnapshot, FileNotFoundError, and
    EngineError for a weight that float16 cannot hold."""
    config = read_config(folder)
    if config is None:
        return None
    _load_base(model, FrozenBase(folder / BASE_FILE))
    model.requires_grad_(False)
    targets = config.targets(name for name, _ in model.named_modules())
    for name in targets:
        plain = model.get_submodule(name)
        if type(plain) is not nn.Linear:
            raise BadSnapshot(f"{name} is no linear layer but a {type(plain).__name__}: it takes no adapter")
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LowRankLinear(plain, config.r, config.scaling))
    return config


@torch.no_grad()
def _load_base(model: nn.Module, base: FrozenBase) -> None:
    """Copy the base into the model's parameters. Raises BadSnapshot unless names and shapes are the same."""
    state = model.state_dict()
    written = set()
    for entry in base.tensors:
        target = state.get(entry.name)
        if target is None or tuple(target.shape) != entry.shape:
            raise BadSnapshot(f"{base.path} is of another model: it has {entry.name!r} of shape {entry.shape}")
        values = base.values(entry.name)
        if target.dtype == torch.float16:
            float16_range.check(values.view(np.uint32), "F32", entry.name)
        target.copy_(torch.from_numpy(values).view(entry.shape))
        written.add(target.data_ptr())
    lacking = sorted(name for name, tensor in state.items() if tensor.data_ptr() not in written)
    if lacking:
        raise BadSnapshot(f"{base.path} is of another model: it has no {lacking[0]!r}")
