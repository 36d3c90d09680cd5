"""Build a model whose parameters are divided among ranks, with PyTorch's FSDP2 (`fully_shard`).

Rules
1. Each rank has its rows of every parameter (learner/ranks/row_shards.py), and no rank ever has the whole model: it is
   built without memory for its parameters, divided, and filled with rows that are read from a file.
2. A decoder layer is collected for its own pass and dropped afterwards; embedding, last norm and head are for the whole
   pass. So a rank has at most those and one or two layers beside its rows.
3. Gradients are summed over the ranks, in float32, not averaged: each rank's loss is its part of the mean.
4. Adapters are for one rank: their state is small, and their frozen base is read whole.
"""

from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from echo2.coordinator.learner.model import (
    WITHIN_FORWARD_METHOD,
    BadModelFolder,
    T,
    cast_parameters,
    check_folder,
    evaluating,
)
from echo2.engines.transformers import model_config
from echo2.engines.transformers.model_config import UnsuitableModel
from echo2.engines.transformers.unfilled_model import build_unfilled
from echo2.weights.lora.adapter_config import CONFIG


def build(folder: Path, mesh: DeviceMesh, device: str, compute: torch.dtype) -> PreTrainedModel:
    """Return the model of a folder, divided among the ranks of `mesh`, its parameters without values. `compute`: their
    type. Raises BadModelFolder."""
    check_folder(folder)
    if (folder / CONFIG).exists():
        raise BadModelFolder(f"{folder} has an adapter, which one rank trains: set learner.ranks to 1")
    try:
        model = build_unfilled(model_config.read(folder), torch.float32)
    except (UnsuitableModel, OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadModelFolder(f"{folder} does not load as a causal language model: {error}") from error
    cast_parameters(model, compute)
    divide(model, mesh)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    nn.Module.to_empty(model, device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return evaluating(model)


def divide(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Divide a model's parameters among the ranks of `mesh` (rules 2 and 3)."""
    settings: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)}
    layers = set(model._no_split_modules or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, **settings)
    fully_shard(model, **settings, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    setattr(model, WITHIN_FORWARD_METHOD, MethodType(_run, model))
    register_fsdp_forward_method(model, WITHIN_FORWARD_METHOD)


def _run(model: PreTrainedModel, work: Callable[[], T]) -> T:
    return work()
