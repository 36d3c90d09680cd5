"""Define what an objective reads and returns, for every sampled token.

Notation, all for one sampled token: behaviour b, proximal q and current p are its probabilities under the version
that generated it, under the policy at the start of the step, and under the weights being trained; A its advantage;
a its *anchor*, the probability against which the ratio p/a is taken; sg stops the gradient.

Rules
1. Only `current` carries gradient. Importance weights against the behaviour are constants.
2. A token is *truncated* where the cap of an importance weight binds. It is *masked* where its weight is set to 0. It
   is *clipped* where the surrogate's gradient is exactly 0 although its advantage is not. All are reported.
3. Log-ratios are bounded before exp, so that one extreme token cannot make the batch's loss infinite.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

LOG_BOUND: Final = 20.0


class LossInputs(NamedTuple):
    """The inputs of an objective: float32 [n] each, one value per sampled token. `rollout`, `group`: int64 [n], numbers
    of the token's rollout among these tokens and of its group in the batch; no rollout is split. `expected`: expected
    of the token's group, by learner/batches/batch.py's `expected_log`."""

    current: Tensor
    proximal: Tensor
    behaviour: Tensor
    advantage: Tensor
    rollout: Tensor
    group: Tensor
    expected: Tensor


class TokenLoss(NamedTuple):
    """The loss per token. `value`: float32 [n] with gradient. `clipped`, `truncated`, `masked`: bool [n] (rule 2)."""

    value: Tensor
    clipped: Tensor
    truncated: Tensor
    masked: Tensor


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return exp(numerator - denominator) of log-probabilities, the difference bounded by +-20."""
    return torch.exp((numerator - denominator).clamp(-LOG_BOUND, LOG_BOUND))


def rollout_mean(value: Tensor, rollout: Tensor) -> Tensor:
    """Return for each token the mean of `value` over its rollout. All tokens of the rollouts must be there."""
    rollouts = int(rollout.max()) + 1 if rollout.numel() else 0
    totals = value.new_zeros(rollouts).index_add_(0, rollout, value)
    counts = value.new_zeros(rollouts).index_add_(0, rollout, torch.ones_like(value))
    return (totals / counts.clamp(min=1))[rollout]


def none_of(terms: LossInputs) -> Tensor:
    """Return False for each token."""
    return torch.zeros_like(terms.rollout, dtype=torch.bool)
