"""Compute the hidden states that predict the sampled tokens of a micro-batch, by one forward pass.

1. Linear layers compute each token once, the prompt of a group once, and no padding; attention is computed per rollout
   over the prompt and its own tokens (engines.transformers.packed_attention). Whether that gives what the model's own
   pass gives is checked once per model.
2. Other models compute rollouts filled up to the longest, each with its prompt. Filling is on the right: attention is
   causal, so no token attends to it, and no mask is needed. So do all models where that costs hardly more tokens.
"""

from typing import Final

import numpy as np
import structlog
import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo2.coordinator.learner.batches.batch import Cost, MicroBatch, count_padded_tokens, shared
from echo2.coordinator.learner.model import within
from echo2.engines.transformers.packed_attention import PackedPass
from echo2.engines.transformers.packed_layout import TokenGroup

NEAR_TOKENS_FACTOR: Final = 1.05
"""Tokens of rule 2 over those of rule 1 up to which one product for all rows costs less than one per row."""
_log = structlog.get_logger("learner")
_CHECKED: Final = "echo2_packed_pass"
"""Attribute of a model that has been checked (rule 1)."""


def cost_of(model: PreTrainedModel) -> Cost:
    """Return how the tokens of a pass are counted."""
    return count_padded_tokens if _packed_pass(model) is None else shared


def predicting_states(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
    """Return the last hidden state before each sampled token: [n, D]."""
    packed = _packed_pass(model)
    if packed is None or count_padded_tokens(micro.groups) <= NEAR_TOKENS_FACTOR * shared(micro.groups):
        return _filled_up(model, micro)
    return _once(packed, micro)


def _packed_pass(model: PreTrainedModel) -> PackedPass | None:
    if not hasattr(model, _CHECKED):
        packed = within(model, lambda: PackedPass.of(model))
        setattr(model, _CHECKED, packed)
        if packed is None:
            _log.warning("rollouts are computed with padding, each with its prompt", model=type(model).__name__)
    checked: PackedPass | None = getattr(model, _CHECKED)
    return checked


def _once(packed: PackedPass, micro: MicroBatch) -> Tensor:
    layout = packed.layout([
        TokenGroup(group[0].tokens[: group[0].prompt].tolist(), [row.tokens[row.prompt : -1].tolist() for row in group])
        for group in micro.groups
    ])  # fmt: skip
    places = [
        layout.before(number, index, target - row.prompt)
        for number, group in enumerate(micro.groups)
        for index, row in enumerate(group)
        for target in row.targets.tolist()
    ]
    return packed.hidden_states(layout)[torch.tensor(places, device=micro.row.device)]


def _filled_up(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
    rows = micro.rows
    tokens = np.zeros((len(rows), max(len(row.tokens) for row in rows)), np.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row.tokens)] = row.tokens
    output = model.base_model(torch.from_numpy(tokens).to(micro.row.device), use_cache=False)
    states: Tensor = output.last_hidden_state[micro.row, micro.position]
    return states
