"""Define the weights of behaviour: one function each. A weight corrects for the tokens' stale or foreign origin.

w = sg(a)/b, anchor over behaviour, is the importance weight of a token; each function bounds it in its own form. It
gets a whole mini-batch where `objective_choices.OF_BATCHES` names it, else any part of one.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.objective.loss_terms import LOG_BOUND, LossInputs, none_of, ratio, rollout_mean

MASK_LOW, MASK_HIGH = 0.5, 5.0
SEQUENCE_LOW, SEQUENCE_HIGH = 0.9, 1.1
SECOND_MOMENT: Final = 0.04


class Weight(NamedTuple):
    """The weight of each token. `value`: float32 [n], constant. `truncated`: bool [n], where the cap binds. `masked`:
    bool [n], where the value was set to 0."""

    value: Tensor
    truncated: Tensor
    masked: Tensor


WeightOf = Callable[[Tensor, LossInputs, Hyper], Weight]
"""(log-probabilities of the anchor, float32 [n], without gradient; the tokens; settings) -> their weights."""


def none(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Weight:
    """Return 1: no correction beside the surrogate's."""
    return Weight(torch.ones_like(anchor), none_of(terms), none_of(terms))


def token_cap(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Weight:
    """Return min(w, C), C = `truncation`: truncated importance sampling, for moderate lags.

    AReaL (arXiv 2505.24298).
    """
    weight = ratio(anchor, terms.behaviour)
    return Weight(weight.clamp(max=hyper.truncation), weight > hyper.truncation, none_of(terms))


def token_mask(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Weight:
    """Return w inside [0.5, 5], else 0: tokens about which anchor and behaviour disagree teach nothing.

    IcePop (arXiv 2510.18855), for engines whose probabilities differ from the learner's.
    """
    weight = ratio(anchor, terms.behaviour)
    masked = (weight < MASK_LOW) | (weight > MASK_HIGH)
    return Weight(weight * ~masked, none_of(terms), masked)


def sequence_mask(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Weight:
    """Return min(w, C) in rollouts whose geometric mean of w is in [0.9, 1.1], else 0: whole rollouts are left out.

    The geometric mean does not depend on the length, so long rollouts are not masked for being long: the geometric
    rejection of verl's rollout correction (Liu et al., "When speed kills stability", 2025), with `token_cap` inside.
    """
    mean = rollout_mean((anchor - terms.behaviour).clamp(-LOG_BOUND, LOG_BOUND), terms.rollout).exp()
    masked = (mean < SEQUENCE_LOW) | (mean > SEQUENCE_HIGH)
    capped = token_cap(anchor, terms, hyper)
    return Weight(capped.value * ~masked, capped.truncated & ~masked, masked)


def m2po(anchor: Tensor, terms: LossInputs, hyper: Hyper) -> Weight:
    """Return w, but 0 for the fewest tokens whose removal brings the mean of log(w)^2 of the others to at most 0.04.

    The tokens with the largest log(w)^2 go first, and only those that have moved in the direction of their advantage
    (A > 0 and w > 1, or A < 0 and w < 1): the others the surrogate pulls back. For long lags. M2PO (arXiv 2510.01161),
    section 5, whose ratio is p/b; with anchor `none`, or `proximal` and one mini-batch, it is the same here.
    """
    log = (anchor - terms.behaviour).clamp(-LOG_BOUND, LOG_BOUND)
    moved = torch.nonzero(log * terms.advantage > 0)[:, 0]
    squares, order = log[moved].double().square().sort(descending=True, stable=True)
    left = squares.flip(0).cumsum(0).flip(0) / torch.arange(len(squares), 0, -1, device=log.device)
    masked = none_of(terms)
    masked[moved[order[: int((left > SECOND_MOMENT).sum())]]] = True
    return Weight(log.exp() * ~masked, none_of(terms), masked)


WEIGHTS: dict[str, WeightOf] = {
    "none": none,
    "token_cap": token_cap,
    "token_mask": token_mask,
    "sequence_mask": sequence_mask,
    "m2po": m2po,
}
