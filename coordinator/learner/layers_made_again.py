"""Let a backward pass compute each decoder layer again, instead of keeping what the forward pass computed of it:
activation checkpointing.

Rules
1. The layers are those that transformers itself would compute again, by the function of PyTorch that it uses,
   non-reentrant. Its own switch works in training mode alone, which would also switch dropout on.
2. A layer is computed again under the attention function of its first time: packed passes name theirs during the
   forward pass alone (engines/transformers/packed_attention.py).
3. The gradients are those of kept layers, bit for bit where a kernel repeats its result, as those of a CPU do.
4. Parameters that are divided among ranks are collected for the backward pass of a layer anyway: hooks of its call stay
   outside of what is computed again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from echo2.engines.transformers.attention_switch import AttentionSwitch


def make_layers_again(model: PreTrainedModel, kind: str, device: torch.device | str) -> None:
    """Let backward passes compute the layers of `model` again. `kind`: `learner.recompute`; auto: on a GPU."""
    if kind == "never" or (kind == "auto" and torch.device(device).type == "cpu"):
        return
    attention = AttentionSwitch(model)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), attention.as_now()

    for layer in layers_of(model):
        layer.forward = _with_checkpoint(layer.forward, contexts)


def layers_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the layers that can be computed again (rule 1)."""
    return [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]


def _with_checkpoint(forward: Callable[..., Any], contexts: Callable[[], Any]) -> Callable[..., Any]:
    def again(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(
            forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **named
        )  # fmt: skip

    return again
