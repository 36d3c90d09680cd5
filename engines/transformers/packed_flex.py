"""Compute attention of a packed layout in one call, for GPUs: PyTorch's flex attention, which skips the blocks of
queries and keys that do not look at each other, and copies no prompt.

1. It computes in any number format, as the scorer needs float32: the kernels for rows of various lengths
   (`torch.nn.attention.varlen`) take 16 bits alone.
2. On a GPU it is compiled at its first use, once for all lengths. On a CPU it computes all pairs, for tests.
3. Not shown on CUDA, ROCm or XPU. A model for which it fails, or gives something else, is computed row by row
   (engines.transformers.packed_attention, rule 3).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

DEVICES: Final = ("cuda", "xpu")
"""Kinds of devices on which it is used; PyTorch calls ROCm's GPUs cuda."""


class TokenMasks:
    """Attention between the tokens of a layout. `rollouts`: the number of each token's row, prompts being rows too.
    `prompts`: the row of its group's prompt. `positions`: positions from the beginning of the prompt. All [N]."""

    def __init__(self, rollouts: Tensor, prompts: Tensor, positions: Tensor) -> None:
        self._rollouts, self._prompts, self._positions = rollouts, prompts, positions
        self._masks: dict[int | None, BlockMask] = {}

    def of(self, window: int | None) -> BlockMask:
        """Return the mask of layers with this window: most keys that a token attends to, itself included."""
        if window not in self._masks:
            size = len(self._positions)
            self._masks[window] = create_block_mask(
                self._rule(window), None, None, size, size, device=str(self._positions.device)
            )
        return self._masks[window]

    def _rule(self, window: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        rollouts, prompts, positions = self._rollouts, self._prompts, self._positions

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = (rollouts[key] == rollouts[query]) | (rollouts[key] == prompts[query])
            before = positions[query] - positions[key]
            causal = own & (before >= 0)
            return causal if window is None else causal & (before < window)

        return sees


def attend(
    masks: TokenMasks, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None
) -> Tensor:
    """Compute attention: query [1, H, N, D], key and value [1, Hk, N, D] -> [1, N, H, D]."""
    output: Tensor = _kernel(query.device.type in DEVICES)(
        query, key, value, block_mask=masks.of(window), scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2)


@cache
def _kernel(compiled: bool) -> Any:
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
