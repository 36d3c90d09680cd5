"""Compute attention of a packed layout in one call, for GPUs: PyTorch's flex attention, which skips the blocks of
queries and keys that do not look at each other, and copies no prompt.

1. It computes in any number format, as the scorer needs float32: the kernels for rows of various lengths
   (`torch.nn.attention.varlen`) take 16 bits alone.
2. The blocks follow from the rows of each block's first and last tokens, since the rows of a layout lie one after the
   other, each prompt before its rollouts. They take 16 bytes per pair of blocks; from a mask of all pairs of tokens
   PyTorch would take 12 per pair of these, 95 GB for the largest pass of a card of 80 GB.
3. On a GPU it is compiled at its first use, once for all lengths. On a CPU it computes all pairs, for tests.
4. Not shown on CUDA, ROCm or XPU. A model for which it fails, or gives something else, is computed row by row
   (engines.transformers.packed_attention, rule 3).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

DEVICES: Final = ("cuda", "xpu")
"""Kinds of devices on which it is used; PyTorch calls ROCm's GPUs cuda."""
BLOCK: Final = 128
"""Tokens of a block of queries, and of one of keys."""


class TokenMasks:
    """Attention between the tokens of a layout. `rollouts`: the number of each token's row, prompts being rows too; it
    never falls. `prompts`: the row of its group's prompt. `positions`: positions from the beginning of the prompt. All
    [N]."""

    def __init__(self, rollouts: Tensor, prompts: Tensor, positions: Tensor) -> None:
        self._rollouts, self._prompts, self._positions = rollouts, prompts, positions
        self._masks: dict[int | None, BlockMask] = {}

    def of(self, window: int | None) -> BlockMask:
        """Return the mask of layers with this window: most keys that a token attends to, itself included."""
        if window not in self._masks:
            size, (partial, whole) = len(self._positions), self.blocks(window)
            self._masks[window] = BlockMask.from_kv_blocks(
                *_order_of(partial), *_order_of(whole), BLOCK_SIZE=BLOCK, mask_mod=self._rule(window),
                seq_lengths=(size, size),
            )  # fmt: skip
        return self._masks[window]

    def blocks(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Return which blocks of keys each block of queries attends to in part, and to which as a whole: bool [queries,
        keys]. Of those in part, whose pairs of tokens are looked at one by one, some may be whole (a prompt's end with
        its first rollout's beginning), and with a window some may have no key that is seen."""
        size, device = len(self._positions), self._positions.device
        first = torch.arange(0, size, BLOCK, device=device)
        last = (first + BLOCK - 1).clamp(max=size - 1)
        numbers, complete = first // BLOCK, last - first == BLOCK - 1
        begin, end = self._rollouts[first], self._rollouts[last]
        prompt = self._prompts[first]  # a later prompt of a block begins in it
        earlier, same = numbers[:, None] > numbers, numbers[:, None] == numbers
        own = earlier & (begin[:, None] == end)
        shared = earlier & (begin <= prompt[:, None]) & (prompt[:, None] <= end)
        one_prompt, one_row = prompt == self._prompts[last], begin == end
        alike = (one_prompt[:, None] & (prompt[:, None] == begin)) | (one_row[:, None] & (begin[:, None] == begin))
        whole = earlier & one_row & alike & complete & complete[:, None]
        if window is not None:
            nearest, furthest = self._bounds(prompt, first, last)
            own &= self._positions[first][:, None] - self._positions[last] < window
            shared &= (prompt[:, None] < end) | (nearest[:, None] - self._positions[last] < window)
            whole &= furthest[:, None] - self._positions[first] < window
        return (same | own | shared) & ~whole, whole

    def _bounds(self, prompt: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return, of each block, the least position of a token of the group of its first token, and the greatest
        position of any."""
        at = torch.arange(len(self._positions), device=first.device) // BLOCK
        of_group = self._prompts == prompt[at]
        nearest = self._positions[first].scatter_reduce(
            0, at, self._positions.where(of_group, self._positions[first][at]), "amin"
        )
        return nearest, self._positions[last].scatter_reduce(0, at, self._positions, "amax")

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


def _order_of(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of the blocks that are named in each row, and all blocks, those first: int32 [1, 1, rows] and
    [1, 1, rows, blocks]."""
    named = blocks.to(torch.int32)
    order = torch.argsort(named, dim=-1, descending=True, stable=True)
    return named.sum(-1).to(torch.int32)[None, None], order.to(torch.int32)[None, None]


@cache
def _kernel(compiled: bool) -> Any:
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
