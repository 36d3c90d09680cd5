"""Define the surrogates: one function each. A surrogate is what a token gains by its ratio r = p/a to the anchor.

Whatever a surrogate bounds, it bounds the step from the anchor; the weight (loss_weights.py) stands outside of it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.objective.loss_terms import LOG_BOUND, LossInputs, none_of, ratio, rollout_mean

CISPO_CAP = 5.0
TWO_SIDED_DELTA = 4.0
GSPO_LOW, GSPO_HIGH = 3e-4, 4e-4
DPPO_STEP = 0.2
DPPO_LOG_RATIO = 1e-3


class Surrogate(NamedTuple):
    """The gain of each token. `gain`: float32 [n] with gradient; the loss is - weight * gain. `clipped`, `truncated`:
    bool [n]. `penalty`: float32 [n] with gradient, added to the loss without a weight; None: none."""

    gain: Tensor
    clipped: Tensor
    truncated: Tensor
    penalty: Tensor | None = None


SurrogateOf = Callable[[Tensor, LossInputs, Hyper], Surrogate]
"""(log-probabilities of the anchor, float32 [n], without gradient; the tokens; settings) -> their gains."""


def _clip_ratio(r: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return min(r A, clip(r, 1 - low, 1 + high) A), and a mask of the tokens whose gradient the clip removed."""
    gain = torch.minimum(r * advantage, r.clamp(1 - low, 1 + high) * advantage)
    return gain, ((advantage > 0) & (r > 1 + high)) | ((advantage < 0) & (r < 1 - low))


def clip(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Surrogate:
    """Compute min(r A, clip(r, 1 - eps_low, 1 + eps_high) A): small steps from the anchor.

    PPO (arXiv 1707.06347), eq. 7, with DAPO's separate upper bound (arXiv 2503.14476), eq. 10.
    """
    gain, clipped = _clip_ratio(ratio(terms.current, anchor), terms.advantage, hyper.eps_low, hyper.eps_high)
    return Surrogate(gain, clipped, none_of(terms))


def two_sided(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Surrogate:
    """Compute min(min(r, delta) A, clip(r, 1 - eps_low, 1 + eps_high) A), delta = 4: two-sided clipping.

    INTELLECT-2 (arXiv 2505.07291), eq. 2. It is `clip` with the ratio of tokens of negative advantage capped at delta;
    without the cap a token whose probability grew under a negative advantage has an unbounded loss.
    """
    r = ratio(terms.current, anchor)
    bounded = r.clamp(1 - hyper.eps_low, 1 + hyper.eps_high)
    gain = torch.minimum(r.clamp(max=TWO_SIDED_DELTA) * terms.advantage, bounded * terms.advantage)
    _, clipped = _clip_ratio(r, terms.advantage, hyper.eps_low, hyper.eps_high)
    truncated = (terms.advantage < 0) & (r > TWO_SIDED_DELTA)
    return Surrogate(gain, clipped | truncated, truncated)


def cispo(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Surrogate:
    """Compute sg(min(r, cap)) A log p, cap = 5: the ratio is capped, the gradient is never removed.

    MiniMax-M1 (arXiv 2506.13585), eq. 4-5, for rare tokens that a clip would silence.
    """
    r = ratio(terms.current.detach(), anchor)
    return Surrogate(r.clamp(max=CISPO_CAP) * terms.advantage * terms.current, none_of(terms), r > CISPO_CAP)


def gspo(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Surrogate:
    """Compute min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A), s = sg(S) p/sg(p), S = exp(mean over the rollout of log r).

    GSPO-token (arXiv 2507.18071), eq. 14-15, for models whose token ratios are noisy (mixtures of experts).
    """
    mean = rollout_mean((terms.current - anchor).detach(), terms.rollout).clamp(-LOG_BOUND, LOG_BOUND)
    s = torch.exp(mean) * ratio(terms.current, terms.current.detach())
    gain, clipped = _clip_ratio(s, terms.advantage, GSPO_LOW, GSPO_HIGH)
    return Surrogate(gain, clipped, none_of(terms))


def gepo(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Surrogate:
    """Compute min(s A, clip(s, 1 - eps_low, 1 + eps_high) A), s = sg(S) p/sg(p), S = exp(mean over the rollout of
    log(p/a) + log b) / E, E the group's expected probability (learner/batches/batch.py).

    With anchor behaviour S is the rollout's probability, by its geometric mean, over what its version expected of the
    group: one denominator for all of a group, so that a rollout which was unlikely has no large ratio. GEPO (arXiv
    2508.17850), eq. 5-6, for long lags. There every rollout counts alike: aggregate `sequences`.
    """
    log = rollout_mean((terms.current - anchor).detach() + terms.behaviour, terms.rollout) - terms.expected
    s = torch.exp(log.clamp(-LOG_BOUND, LOG_BOUND)) * ratio(terms.current, terms.current.detach())
    gain, clipped = _clip_ratio(s, terms.advantage, hyper.eps_low, hyper.eps_high)
    return Surrogate(gain, clipped, none_of(terms))


def dppo(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Surrogate:
    """Compute M r A, and a penalty 1e-3 log(r)^2; M = 0 where p has moved by more than 0.2 in the direction of A.

    The mask depends on the difference of probabilities, not on their ratio, which would mask rare tokens for being rare
    (DPPO with binary total variation, arXiv 2602.04879; prime-rl's default). For long lags.
    """
    moved = terms.current.detach().exp() - anchor.exp()
    advantage = terms.advantage
    removed = ((advantage > 0) & (moved > DPPO_STEP)) | ((advantage < 0) & (moved < -DPPO_STEP))
    log_ratio = (terms.current - anchor).clamp(-LOG_BOUND, LOG_BOUND)
    gain = torch.exp(log_ratio) * advantage * ~removed
    return Surrogate(gain, removed, none_of(terms), DPPO_LOG_RATIO * log_ratio.square())


SURROGATES: dict[str, SurrogateOf] = {
    "clip": clip,
    "two_sided": two_sided,
    "cispo": cispo,
    "gspo": gspo,
    "gepo": gepo,
    "dppo": dppo,
}
