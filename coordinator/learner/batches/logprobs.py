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
from echo2.engines.transformers.output_layer import OutputLayer

CHUNK_ELEMENTS = 1 << 24


def token_logprobs(model: PreTrainedModel, micro: MicroBatch, chunk_elements: int = CHUNK_ELEMENTS) -> Tensor:
    """Return log softmax(logits)[target] for each sampled token: float32 [n]. `chunk_elements`: most logits in memory.

    Temperature is 1 and no token is masked, as in the nodes' sampling.
    """
    states = predicting_states(model, micro)
    head = head_of(model)
    size = max(1, chunk_elements // head.linear.weight.shape[0])
    if len(states) <= size:
        return _target_logprobs(head, states, micro.target)
    picked = _recompute_logprobs if torch.is_grad_enabled() else _target_logprobs
    cuts = [slice(start, start + size) for start in range(0, len(states), size)]
    return torch.cat([picked(head, states[cut], micro.target[cut]) for cut in cuts])


def _target_logprobs(head: OutputLayer, states: Tensor, target: Tensor) -> Tensor:
    logits = head(states)
    return logits.gather(1, target[:, None])[:, 0] - logits.logsumexp(1)


def _recompute_logprobs(head: OutputLayer, states: Tensor, target: Tensor) -> Tensor:
    part = checkpoint(_target_logprobs, head, states, target, use_reentrant=False)
    assert isinstance(part, Tensor)
    return part
