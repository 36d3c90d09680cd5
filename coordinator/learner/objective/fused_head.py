"""Head and loss of sampled tokens in one pass over the logits, a chunk at a time.

1. The logits of a batch are its largest tensor by far (tokens x vocabulary). A chunk's logits are computed once: its
   loss and the loss's gradient come from them at once, and they are dropped. So a step has three products with the head
   instead of four, and one chunk in memory.
2. Logits and sums are float32, also where the model computes in 16 bits. There a GPU multiplies in 16 bits and adds up
   in float32, so logits are those of float32 products, and only their gradient is rounded. A CPU multiplies in float32.
3. The loss of a token depends on its own log-probability and on constants. An objective that needs a whole rollout
   gets its gradient per token from a pass of its own before (learner/step.py).
4. Entropy comes from the same logits.
5. A head that scales or caps its logits (engines/transformers/output_layer.py) multiplies their gradients by its slope.

As Liger-Kernel's fused linear losses (arXiv 2410.10989), for any loss per token.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from echo2.engines.transformers.output_layer import OutputLayer

CHUNK_ELEMENTS: Final = 1 << 23
"""Most logits in memory, twice, on a CPU."""
GPU_CHUNK_ELEMENTS: Final = 1 << 29
"""The same on a GPU: 4 GiB with both float32 copies. Its kernels need thousands of rows."""
GPU_CHUNK_ROWS: Final = 4096
"""Rows of a chunk on a GPU where the vocabulary is so large that `GPU_CHUNK_ELEMENTS` has fewer."""

ChunkLoss = Callable[[Tensor, slice], Tensor]
"""(log-probabilities of some sampled tokens, with gradient; which of them) -> their part of the loss, a scalar."""


class FusedLoss(NamedTuple):
    """`loss`: a scalar with gradient. `logprobs`, `entropy`: logprobs and entropy of each sampled token and of the
    policy there, float32 [n], nats, without gradient."""

    loss: Tensor
    logprobs: Tensor
    entropy: Tensor


def chunk_rows(vocabulary: int, device: str) -> int:
    """Return the most rows of a chunk. `device`: kind of the device. It does not depend on free memory, as sums do on
    it; a smaller micro-batch has fewer rows."""
    if device == "cpu":
        return max(1, CHUNK_ELEMENTS // vocabulary)
    return max(GPU_CHUNK_ROWS, GPU_CHUNK_ELEMENTS // vocabulary)


def logits_of(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the logits, float32 [n, V]. `states`: [n, D]. `weight`: [V, D], in float32 where the device cannot add up
    products of 16 bits in float32 (rule 2)."""
    wide_bias = None if bias is None else bias.float()
    if weight.dtype == torch.float32:
        return torch.nn.functional.linear(states.float(), weight, wide_bias)
    logits = torch.mm(states, weight.t(), out_dtype=torch.float32)
    return logits if wide_bias is None else logits.add_(wide_bias)


def factor_of(weight: Tensor) -> Tensor:
    """Return the head's weight in the type in which it is multiplied (rule 2)."""
    return weight if _adds_wide(weight.device.type, weight.dtype) else weight.float()


@cache
def _adds_wide(device: str, kind: torch.dtype) -> bool:
    """Tell whether a device multiplies 16 bits with a float32 result: CUDA's, by a PyTorch that has `out_dtype`."""
    if device == "cpu" or kind == torch.float32:
        return False
    probe = torch.zeros((16, 16), dtype=kind, device=device)
    try:
        torch.addmm(torch.mm(probe, probe, out_dtype=torch.float32), probe, probe, out_dtype=torch.float32)
    except (RuntimeError, TypeError):
        return False
    return True


def fused_loss(
    head: OutputLayer, states: Tensor, target: Tensor, loss_of: ChunkLoss, chunk: int | None = None
) -> FusedLoss:
    """Return the loss of sampled tokens. `states`: [n, D], those that predict them. `target`: int64 [n]. `chunk`: most
    rows at once; None: those of `chunk_rows`."""
    logprobs, entropy = torch.empty((2, len(states)), dtype=torch.float32, device=states.device)
    weight, bias = head.linear.weight, head.linear.bias
    chunk = chunk or chunk_rows(weight.shape[0], states.device.type)
    fused: Any = _Fused  # its methods carry no types
    loss = fused.apply(states, weight, bias, target, loss_of, chunk, logprobs, entropy, head)
    return FusedLoss(loss, logprobs, entropy)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        loss_of: ChunkLoss,
        chunk: int,
        logprobs: Tensor,
        entropy: Tensor,
        head: OutputLayer,
    ) -> Tensor:
        factor = factor_of(weight)
        of_states = torch.empty_like(states)
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and bias.requires_grad else None
        total = torch.zeros((), device=states.device)
        for start in range(0, len(states), chunk):
            cut = slice(start, min(start + chunk, len(states)))
            part, wanted = states[cut].to(factor.dtype), target[cut, None]
            logs = head.change(logits_of(part, factor, bias))
            slope = head.slope(logs)
            logs -= logs.logsumexp(1, keepdim=True)
            logprobs[cut] = logs.gather(1, wanted)[:, 0]
            gradient, loss = _of_chunk(loss_of, logprobs[cut], cut)
            total += loss
            chances = logs.exp()
            entropy[cut] = -torch.bmm(chances[:, None], logs[:, :, None])[:, 0, 0]
            chances.mul_(-gradient[:, None]).scatter_add_(1, wanted, gradient[:, None])
            if head.changes:
                chances.mul_(slope)
            if of_bias is not None:
                of_bias += chances.sum(0)
            del logs
            chances = chances.to(factor.dtype)
            of_states[cut] = chances @ factor
            if of_weight is not None:
                _add_product(of_weight, chances.t(), part)
        ctx.kinds = weight.dtype, None if bias is None else bias.dtype
        ctx.save_for_backward(of_states, of_weight, of_bias)
        return total

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        kept = zip(ctx.saved_tensors, (ctx.saved_tensors[0].dtype, *ctx.kinds), strict=True)
        gradients = [None if one is None else one.mul_(above).to(kind) for one, kind in kept]
        return (*gradients, None, None, None, None, None, None)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product to a float32 sum (rule 2)."""
    if left.dtype == torch.float32:
        total.addmm_(left, right)
    else:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)


def _of_chunk(loss_of: ChunkLoss, logprobs: Tensor, cut: slice) -> tuple[Tensor, Tensor]:
    """Return the gradient of the loss by each log-probability, and the loss."""
    with torch.enable_grad():
        leaf = logprobs.detach().clone().requires_grad_()
        loss = loss_of(leaf, cut)
        (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient, loss.detach()
