"""Compute the loss of sampled tokens from the four choices that make an objective (objective_choices.py).

loss_terms.py has the notation and the rules that hold for all choices.
"""

from collections.abc import Callable

from torch import Tensor

from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.objective.loss_terms import LOG_BOUND, LossInputs, TokenLoss, ratio
from echo2.coordinator.learner.objective.loss_weights import WEIGHTS, Weight
from echo2.coordinator.learner.objective.surrogates import SURROGATES
from echo2.coordinator.settings.objective_choices import Choices


def of_behaviour(terms: LossInputs) -> Tensor:
    """Return log b: the ratio p/b corrects for the version that generated the token. PPO and GRPO as published."""
    return terms.behaviour


def of_proximal(terms: LossInputs) -> Tensor:
    """Return log q: the surrogate bounds the step from this step's start, however stale the token. Decoupled PPO
    (arXiv 2110.00641)."""
    return terms.proximal


def of_itself(terms: LossInputs) -> Tensor:
    """Return log sg(p): the ratio is 1 in value, and no surrogate binds by it. REINFORCE (Williams 1992)."""
    return terms.current.detach()


ANCHORS: dict[str, Callable[[LossInputs], Tensor]] = {
    "behaviour": of_behaviour,
    "proximal": of_proximal,
    "none": of_itself,
}


def weight_of(choices: Choices, terms: LossInputs, hyper: Hyper) -> Weight:
    """Return the weights of these tokens; those of a whole mini-batch where the choice needs one (OF_BATCHES)."""
    return WEIGHTS[choices.weight](ANCHORS[choices.anchor](terms), terms, hyper)


def token_loss(choices: Choices, terms: LossInputs, hyper: Hyper, weight: Weight | None = None) -> TokenLoss:
    """Return - weight * surrogate for each token. `weight`: weight of these tokens, by `weight_of`; None: from
    `terms`."""
    weight = weight_of(choices, terms, hyper) if weight is None else weight
    surrogate = SURROGATES[choices.surrogate](ANCHORS[choices.anchor](terms), terms, hyper)
    value = -weight.value * surrogate.gain
    if surrogate.penalty is not None:
        value = value + surrogate.penalty
    return TokenLoss(value, surrogate.clipped & ~weight.masked, surrogate.truncated | weight.truncated, weight.masked)


def kl_term(current: Tensor, reference: Tensor, behaviour: Tensor, hyper: Hyper) -> Tensor:
    """Return the KL term of each token, float32 [n] with gradient, before its coefficient: `reference_kl`, with
    `kl_weighted` times min(p/b, C), C = `truncation`.

    Tokens come from b: weighted, and where the cap does not bind, the mean estimates KL(current || reference) and its
    gradient without bias, the gradient of p/b included. DeepSeek-V3.2 (arXiv 2512.02556), 3.1.
    """
    divergence = reference_kl(current, reference)
    if not hyper.kl_weighted:
        return divergence
    return ratio(current, behaviour).clamp(max=hyper.truncation) * divergence


def reference_kl(current: Tensor, reference: Tensor) -> Tensor:
    """Estimate KL(current || reference) per token, float32 [n] with gradient: the "k3" of
    http://joschu.net/blog/kl-approx.html, ref/p - 1 - log(ref/p), never below 0. DeepSeekMath, eq. 4."""
    log_ratio = (reference - current).clamp(-LOG_BOUND, LOG_BOUND)
    return log_ratio.exp() - 1 - log_ratio
