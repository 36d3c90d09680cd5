"""Head and loss of sampled tokens in one pass over the logits, a chunk at a time.

1. The logits of a batch are its largest tensor by far (tokens x vocabulary). A chunk's logits are computed once, in
   float32 also where the model computes in bfloat16: its loss and the loss's gradient come from them at once, and they
   are dropped. So a step has three products with the head instead of four, and one chunk in memory.
2. The loss of a token depends on its own log-probability and on constants. An objective that needs a whole rollout
   gets its gradient per token from a pass of its own before (learner/step.py).
3. Entropy comes from the same logits.
4. A head that scales or caps its logits (engines/transformers/output_layer.py) multiplies their gradients by its slope.

As Liger-Kernel's fused linear losses (arXiv 2410.10989), for any loss per token.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from echo2.engines.transformers.output_layer import OutputLayer

CHUNK_ELEMENTS: Final = 1 << 23
"""Most logits in memory, twice."""

ChunkLoss = Callable[[Tensor, slice], Tensor]
"""(log-probabilities of some sampled tokens, with gradient; which of them) -> their part of the loss, a scalar."""


class FusedLoss(NamedTuple):
    """`loss`: a scalar with gradient. `logprobs`, `entropy`: logprobs and entropy of each sampled token and of the
    policy there, float32 [n], nats, without gradient."""

    loss: Tensor
    logprobs: Tensor
    entropy: Tensor


def fused_loss(
    head: OutputLayer, states: Tensor, target: Tensor, loss_of: ChunkLoss, chunk_elements: int = CHUNK_ELEMENTS
) -> FusedLoss:
    """Return the loss of sampled tokens. `states`: [n, D], those that predict them. `target`: int64 [n]."""
    logprobs, entropy = torch.empty((2, len(states)), dtype=torch.float32, device=states.device)
    weight, bias = head.linear.weight, head.linear.bias
    chunk = max(1, chunk_elements // weight.shape[0])
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
        wide = weight.float()
        of_states = torch.empty_like(states)
        of_weight = torch.zeros_like(wide) if weight.requires_grad else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and bias.requires_grad else None
        total = torch.zeros((), device=states.device)
        for start in range(0, len(states), chunk):
            cut = slice(start, min(start + chunk, len(states)))
            part, wanted = states[cut].float(), target[cut, None]
            logs = head.change(torch.nn.functional.linear(part, wide, None if bias is None else bias.float()))
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
            of_states[cut] = chances @ wide
            if of_weight is not None:
                of_weight.addmm_(chances.t(), part)
            if of_bias is not None:
                of_bias += chances.sum(0)
        ctx.kinds = weight.dtype, None if bias is None else bias.dtype
        ctx.save_for_backward(of_states, of_weight, of_bias)
        return total

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        kept = zip(ctx.saved_tensors, (ctx.saved_tensors[0].dtype, *ctx.kinds), strict=True)
        gradients = [None if one is None else one.mul_(above).to(kind) for one, kind in kept]
        return (*gradients, None, None, None, None, None, None)


def _of_chunk(loss_of: ChunkLoss, logprobs: Tensor, cut: slice) -> tuple[Tensor, Tensor]:
    """Return the gradient of the loss by each log-probability, and the loss."""
    with torch.enable_grad():
        leaf = logprobs.detach().clone().requires_grad_()
        loss = loss_of(leaf, cut)
        (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient, loss.detach()
