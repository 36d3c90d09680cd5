"""Compute log-probabilities of sampled tokens under a model, with little memory.

The logits of a long batch are its largest tensor by far (tokens x vocabulary). So the head runs only on positions
that predict a sampled token, in chunks, and the backward pass recomputes a chunk's logits instead of keeping them.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from echo2.coordinator.learner.batches.batch import MicroBatch
from echo2.coordinator.learner.batches.hidden_states import predicting_states
from echo2.coordinator.learner.model import head_of
from echo2.coordinator.learner.objective.fused_head import chunk_rows, factor_of, logits_of
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.engines.transformers.output_layer import OutputLayer

CHUNK_ELEMENTS = 1 << 24
"""Most logits in memory on a CPU."""


def token_logprobs(
    model: PreTrainedModel, micro: MicroBatch, chunk: int | None = None, temperature: int = PLAIN_TEMPERATURE
) -> Tensor:
    """Return log softmax(logits)[target] for each sampled token: float32 [n]; no token is masked. `chunk`: most rows of
    logits in memory; None: as many as suit the device. `temperature`: temperature of the nodes' sampling, in
    thousandths."""
    states = predicting_states(model, micro)
    head = head_of(model, temperature)
    size = chunk or _rows_at_once(head.linear.weight)
    weight = factor_of(head.linear.weight)
    if len(states) <= size:
        return _target_logprobs(head, weight, states, micro.target)
    picked = _recompute_logprobs if torch.is_grad_enabled() else _target_logprobs
    cuts = [slice(start, start + size) for start in range(0, len(states), size)]
    return torch.cat([picked(head, weight, states[cut], micro.target[cut]) for cut in cuts])


def _rows_at_once(weight: Tensor) -> int:
    if weight.device.type == "cpu":
        return max(1, CHUNK_ELEMENTS // weight.shape[0])
    return chunk_rows(weight.shape[0], weight.device.type)


def _target_logprobs(head: OutputLayer, weight: Tensor, states: Tensor, target: Tensor) -> Tensor:
    logits = head.change(logits_of(states, weight, head.linear.bias))
    return logits.gather(1, target[:, None])[:, 0] - logits.logsumexp(1)


def _recompute_logprobs(head: OutputLayer, weight: Tensor, states: Tensor, target: Tensor) -> Tensor:
    part = checkpoint(_target_logprobs, head, weight, states, target, use_reentrant=False)
    assert isinstance(part, Tensor)
    return part
