"""Define the objectives: one function each, which returns a loss for every sampled token.

Notation, all for one sampled token: behaviour b, proximal q and current p are its probabilities under the version
that generated it, under the policy at the start of the step, and under the weights being trained; A its advantage;
sg stops the gradient. The learner averages the losses over the tokens of a mini-batch.

Rules
1. Only `current` carries gradient. Importance weights against the behaviour are constants.
2. A token is *truncated* where the cap of an importance weight binds; it is *clipped* where its gradient is exactly 0
   although its advantage is not. Both are reported, never silent.
3. Log-ratios are bounded before exp, so that one extreme token cannot make the batch's loss infinite.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from coordinator.learner.messages import Hyper

CISPO_CAP = 5.0
TWO_SIDED_DELTA = 4.0
GSPO_LOW, GSPO_HIGH = 3e-4, 4e-4
DPPO_STEP = 0.2
DPPO_LOG_RATIO = 1e-3
_LOG_BOUND = 20.0


class LossInputs(NamedTuple):
    """The inputs of an objective: float32 [n] each, one value per sampled token. `rollout`: int64 [n], index of the
    token's rollout in the micro-batch; a rollout is never split between micro-batches."""

    current: Tensor
    proximal: Tensor
    behaviour: Tensor
    advantage: Tensor
    rollout: Tensor


class TokenLoss(NamedTuple):
    """The loss per token. `value`: float32 [n] with gradient. `clipped`, `truncated`: bool [n] (rule 2)."""

    value: Tensor
    clipped: Tensor
    truncated: Tensor


Objective = Callable[[LossInputs, Hyper], TokenLoss]


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return exp(numerator - denominator) of log-probabilities, the difference bounded by +-20."""
    return torch.exp((numerator - denominator).clamp(-_LOG_BOUND, _LOG_BOUND))


def _clip_surrogate(u: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return min(u A, clip(u, 1 - low, 1 + high) A), and a mask of the tokens whose gradient the clip removed.

    PPO (arXiv 1707.06347), eq. 7, with DAPO's separate upper bound (arXiv 2503.14476), eq. 10.
    """
    surrogate = torch.minimum(u * advantage, u.clamp(1 - low, 1 + high) * advantage)
    clipped = ((advantage > 0) & (u > 1 + high)) | ((advantage < 0) & (u < 1 - low))
    return surrogate, clipped


def decoupled(terms: LossInputs, hyper: Hyper) -> TokenLoss:
    """Compute - min(q/b, C) * min(u A, clip(u, 1 - eps_low, 1 + eps_high) A), u = p/q, C = `truncation`.

    Decoupled PPO (arXiv 2110.00641), as AReaL uses it for staleness (arXiv 2505.24298), its behaviour weight
    truncated. With one mini-batch u is 1 in value and this is truncated importance sampling: grad = w A grad log p.
    """
    weight = ratio(terms.proximal, terms.behaviour)
    truncated = weight > hyper.truncation
    u = ratio(terms.current, terms.proximal)
    surrogate, clipped = _clip_surrogate(u, terms.advantage, hyper.eps_low, hyper.eps_high)
    return TokenLoss(-weight.clamp(max=hyper.truncation) * surrogate, clipped, truncated)


def grpo(terms: LossInputs, hyper: Hyper) -> TokenLoss:
    """Compute - min(r A, clip(r, 1 - eps_low, 1 + eps_high) A), r = p/b: GRPO, clipped against the behaviour.

    DeepSeekMath (arXiv 2402.03300), eq. 3. Stale tokens outside the clip have no gradient.
    """
    r = ratio(terms.current, terms.behaviour)
    surrogate, clipped = _clip_surrogate(r, terms.advantage, hyper.eps_low, hyper.eps_high)
    return TokenLoss(-surrogate, clipped, torch.zeros_like(clipped))


def two_sided(terms: LossInputs, hyper: Hyper) -> TokenLoss:
    """Compute - min(min(r, delta) A, clip(r, 1 - eps_low, 1 + eps_high) A), r = p/b, delta = 4: two-sided clipping.

    INTELLECT-2 (arXiv 2505.07291), eq. 2. It is `grpo` with the ratio of tokens of negative advantage capped at delta;
    without the cap a token whose probability grew under a negative advantage has an unbounded loss.
    """
    r = ratio(terms.current, terms.behaviour)
    bounded = r.clamp(1 - hyper.eps_low, 1 + hyper.eps_high)
    surrogate = torch.minimum(r.clamp(max=TWO_SIDED_DELTA) * terms.advantage, bounded * terms.advantage)
    _, clipped = _clip_surrogate(r, terms.advantage, hyper.eps_low, hyper.eps_high)
    truncated = (terms.advantage < 0) & (r > TWO_SIDED_DELTA)
    return TokenLoss(-surrogate, clipped | truncated, truncated)


def cispo(terms: LossInputs, hyper: Hyper) -> TokenLoss:
    """Compute - sg(min(p/b, cap)) A log p, cap = 5: the weight is clipped, the gradient is never removed.

    MiniMax-M1 (arXiv 2506.13585), eq. 4-5.
    """
    weight = ratio(terms.current.detach(), terms.behaviour)
    truncated = weight > CISPO_CAP
    value = -weight.clamp(max=CISPO_CAP) * terms.advantage * terms.current
    return TokenLoss(value, torch.zeros_like(truncated), truncated)


def gspo(terms: LossInputs, hyper: Hyper) -> TokenLoss:
    """Compute - min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A), s = sg(S) p/sg(p), S = exp(mean over the rollout of log p/b).

    GSPO-token (arXiv 2507.18071), eq. 14-15; tokens, not rollouts, weigh equally in the mean.
    """
    log_ratio = (terms.current - terms.behaviour).detach()
    rollouts = int(terms.rollout.max()) + 1 if terms.rollout.numel() else 0
    totals = log_ratio.new_zeros(rollouts).index_add_(0, terms.rollout, log_ratio)
    counts = log_ratio.new_zeros(rollouts).index_add_(0, terms.rollout, torch.ones_like(log_ratio))
    mean = (totals / counts.clamp(min=1))[terms.rollout].clamp(-_LOG_BOUND, _LOG_BOUND)
    s = torch.exp(mean) * ratio(terms.current, terms.current.detach())
    surrogate, clipped = _clip_surrogate(s, terms.advantage, GSPO_LOW, GSPO_HIGH)
    return TokenLoss(-surrogate, clipped, torch.zeros_like(clipped))


def dppo(terms: LossInputs, hyper: Hyper) -> TokenLoss:
    """Compute - M r A + 1e-3 log(r)^2, r = p/b; M = 0 where p has moved by more than 0.2 in the direction of A.

    The mask depends on the difference of probabilities, not on their ratio, which would mask rare tokens for being rare
    (DPPO with binary total variation, arXiv 2602.04879; prime-rl's default).
    """
    moved = terms.current.detach().exp() - terms.behaviour.exp()
    advantage = terms.advantage
    masked = ((advantage > 0) & (moved > DPPO_STEP)) | ((advantage < 0) & (moved < -DPPO_STEP))
    log_ratio = (terms.current - terms.behaviour).clamp(-_LOG_BOUND, _LOG_BOUND)
    value = -torch.exp(log_ratio) * advantage * ~masked + DPPO_LOG_RATIO * log_ratio.square()
    return TokenLoss(value, masked, torch.zeros_like(masked))


def uncorrected(terms: LossInputs, hyper: Hyper) -> TokenLoss:
    """Compute - A p/sg(p): the policy gradient as if the rollouts were on policy (REINFORCE, Williams 1992). It is a
    baseline that measures the value of importance weights (benchmarks/learning.py), not meant for stale rollouts."""
    none = torch.zeros_like(terms.rollout, dtype=torch.bool)
    return TokenLoss(-terms.advantage * ratio(terms.current, terms.current.detach()), none, none)


def reference_kl(current: Tensor, reference: Tensor) -> Tensor:
    """Estimate KL(current || reference) per token, float32 [n] with gradient: the "k3" of
    http://joschu.net/blog/kl-approx.html, ref/p - 1 - log(ref/p), never below 0. DeepSeekMath, eq. 4."""
    log_ratio = (reference - current).clamp(-_LOG_BOUND, _LOG_BOUND)
    return torch.exp(log_ratio) - 1 - log_ratio


OBJECTIVES: dict[str, Objective] = {
    "decoupled": decoupled,
    "grpo": grpo,
    "two_sided": two_sided,
    "cispo": cispo,
    "gspo": gspo,
    "dppo": dppo,
    "uncorrected": uncorrected,
}


OF_ROLLOUTS: frozenset[str] = frozenset({"gspo"})
"""Objectives whose loss of a token depends on the other tokens of its rollout."""


def objective(name: str) -> Objective:
    """Return the objective of that name. Raises ValueError, which lists the known names."""
    if name not in OBJECTIVES:
        raise ValueError(f"objective {name!r} is unknown: choose one of {', '.join(sorted(OBJECTIVES))}")
    return OBJECTIVES[name]
