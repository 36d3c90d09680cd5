"""Attention of a decode step on a CPU whose keys and values have 16 bits: computed in float32, block by block.

1. PyTorch's own function for one query per head is slow in these types on CPUs: 2.5 times slower in bfloat16 without
   grouped queries, and 4 times in float16, than with each block of keys and values cast to float32 while it lies in
   the processor's cache. It is no faster where a block is too large for that (docs/log/, "Decode attention in 16
   bits").
2. The sums are those of float32, so closer to exact ones than PyTorch's, whose weights are rounded to 16 bits. The
   result is rounded once.
3. What else a model asks of its attention goes to the library's function.
"""

import threading
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from echo2.engines.transformers.attention_switch import AttentionSwitch

NAME: Final = "echo2_half"
"""The function's name in a model's configuration."""
BLOCK: Final = 1 << 19
"""Numbers of keys, and of values, in a block: 2 MiB each."""
_HALF_DTYPES: Final = (torch.float16, torch.bfloat16)
_OWN_ATTENTION: Final = "sdpa"
_FOREIGN_ARGUMENTS: Final = ("softcap", "s_aux", "position_bias", "cache", "is_causal")
"""Arguments of some models' attention functions that this one does not compute."""


class _Room(threading.local):
    """Memory of a thread for one block, so that none is asked for in each layer of each step."""

    def __init__(self) -> None:
        self._numbers = _normal(0)

    def cast(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Copy both to float32. What it returned before is overwritten."""
        count, size = keys.numel(), values.numel()
        if self._numbers.numel() < count + size:
            self._numbers = _normal(max(count + size, 2 * BLOCK))
        rooms = self._numbers[:count].view(keys.shape), self._numbers[count : count + size].view(values.shape)
        return rooms[0].copy_(keys), rooms[1].copy_(values)


def _normal(count: int) -> Tensor:
    """Return room for numbers that can be written to within inference mode and outside of it."""
    with torch.inference_mode(False):
        return torch.empty(count)


_room: Final = _Room()


def serves(model: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether decode steps of a model gain from this function (rule 1)."""
    return device.type == "cpu" and dtype in _HALF_DTYPES and AttentionSwitch(model).names == {_OWN_ATTENTION}


def half_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers' functions do: query [R, H, 1, D], key [R, Hk, N, D], value [R, Hk, N, Dv],
    mask to add [R, 1, 1, N] -> [R, 1, H, Dv]."""
    rows, heads, tokens = key.shape[:3]
    if (
        attention_mask is None
        or attention_mask.shape != (rows, 1, 1, tokens)
        or query.shape[2] != 1
        or any(kwargs.get(name) is not None for name in _FOREIGN_ARGUMENTS)
    ):
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output, None
    # A row and one of its key heads is a problem of its own, with the queries of its group.
    queries = query.reshape(rows * heads, 1, -1, query.shape[-1]).float()
    masks = attention_mask.float().expand(rows, heads, 1, tokens).reshape(rows * heads, 1, 1, tokens)
    keys, values = key.flatten(0, 1)[:, None], value.flatten(0, 1)[:, None]
    output = query.new_empty((*queries.shape[:3], value.shape[-1]))
    count = max(1, BLOCK // (tokens * max(key.shape[-1], value.shape[-1])))
    for start in range(0, rows * heads, count):
        block = slice(start, start + count)
        output[block] = scaled_dot_product_attention(
            queries[block], *_room.cast(keys[block], values[block]), attn_mask=masks[block], scale=scaling
        )
    return output.view(rows, 1, query.shape[1], -1), None


AttentionInterface.register(NAME, half_attention)
