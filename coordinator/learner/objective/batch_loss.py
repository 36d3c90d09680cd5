"""Compute the loss of one micro-batch as a function of its log-probabilities, for the fused head.

An objective that needs a whole rollout or mini-batch gets its ratios from a first pass without gradient, whose
log-probabilities are those of the second pass up to rounding: no weight changes in between.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from echo2.coordinator.learner.batches.batch import MicroBatch
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.objective.aggregates import AGGREGATES, Size
from echo2.coordinator.learner.objective.fused_head import ChunkLoss, FusedLoss
from echo2.coordinator.learner.objective.loss import kl_term, reference_kl, token_loss, weight_of
from echo2.coordinator.learner.objective.loss_terms import LossInputs
from echo2.coordinator.learner.objective.loss_weights import Weight
from echo2.coordinator.learner.objective.step_metrics import StepMetrics
from echo2.coordinator.learner.ranks.ranks import ONLY_RANK, Ranks
from echo2.coordinator.settings.objective_choices import OF_BATCHES, OF_ROLLOUTS, Choices, choices_of


def needs_first_pass(choices: Choices, *, proximal: bool) -> bool:
    """Tell whether the current log-probabilities must be known before the pass with gradient. `proximal`: whether those
    of the proximal policy are."""
    weighed = choices.weight in OF_BATCHES and not (proximal and choices.anchor == "proximal")
    return weighed or choices.surrogate in OF_ROLLOUTS


def weights_of(
    choices: Choices,
    mini: Sequence[MicroBatch],
    current: Sequence[Tensor] | None,
    proximal: Sequence[Tensor] | None,
    hyper: Hyper,
    ranks: Ranks = ONLY_RANK,
) -> list[Weight] | list[None]:
    """Return the weights of each micro-batch's tokens, computed over the whole mini-batch of all ranks; None where each
    token's own log-probabilities are enough. `current`: of the first pass. `proximal` None: it is the current policy.
    """
    if choices.weight not in OF_BATCHES or not mini:
        return [None] * len(mini)
    known = current if current is not None else proximal
    assert known is not None
    before = known if proximal is None else proximal
    parts, rollouts = [], 0
    for micro, now, earlier in zip(mini, known, before, strict=True):
        fixed = micro.behaviour, micro.advantage, micro.row + rollouts, micro.group, micro.expected
        parts.append(LossInputs(now, earlier, *fixed))
        rollouts += len(micro.rows)
    weight = _over_ranks(choices, LossInputs(*map(torch.cat, zip(*parts, strict=True))), rollouts, hyper, ranks)
    cuts = [len(micro.target) for micro in mini]
    return [Weight(*part) for part in zip(*(torch.split(column, cuts) for column in weight), strict=True)]


def _over_ranks(choices: Choices, own: LossInputs, rollouts: int, hyper: Hyper, ranks: Ranks) -> Weight:
    """Return the weights of this rank's tokens among those of all. `rollouts`: number of this rank's."""
    before = sum(int(count) for count in ranks.gather_by_rank(torch.tensor([rollouts]))[: ranks.rank])
    columns = [ranks.gather_by_rank(column) for column in own._replace(rollout=own.rollout + before)]
    weight = weight_of(choices, LossInputs(*map(torch.cat, columns)), hyper)
    start = sum(map(len, columns[0][: ranks.rank]))
    return Weight(*(column[start : start + len(own.current)] for column in weight))


class ReferenceTerm(NamedTuple):
    """The KL term of a micro-batch. `logprobs`: logprobs of the base, float32 [n]. `size`: size of its mini-batch, for
    this term."""

    logprobs: Tensor
    size: Size


class _MicroLoss:
    """The aggregate of a micro-batch's tokens, and its KL term."""

    def __init__(self, micro: MicroBatch, reference: ReferenceTerm | None, hyper: Hyper) -> None:
        self._micro, self._reference, self._hyper = micro, reference, hyper
        self._choices = choices_of(hyper)
        self._lengths = torch.bincount(micro.row).to(micro.behaviour.dtype)[micro.row]

    def _mean(self, value: Tensor, cut: slice, size: Size) -> Tensor:
        return AGGREGATES[self._choices.aggregate](value, self._lengths[cut], size)

    def _kl(self, reference: ReferenceTerm, current: Tensor, cut: slice) -> Tensor:
        value = kl_term(current, reference.logprobs[cut], self._micro.behaviour[cut], self._hyper)
        return self._hyper.kl_coefficient * self._mean(value, cut, reference.size)


class FlatLoss(_MicroLoss):
    """The loss of a micro-batch of groups without signal: the KL term alone."""

    def __init__(self, micro: MicroBatch, reference: ReferenceTerm, hyper: Hyper) -> None:
        super().__init__(micro, reference, hyper)
        self._base = reference

    def of_chunk(self, current: Tensor, cut: slice) -> Tensor:
        """Return the part of the loss of some tokens."""
        return self._kl(self._base, current, cut)

    @torch.no_grad()
    def record(self, fused: FusedLoss, metrics: StepMetrics) -> None:
        """Add the micro-batch to the metrics."""
        metrics.add_flat(reference_kl(fused.logprobs, self._base.logprobs), float(fused.loss))


class BatchLoss(_MicroLoss):
    """The loss of a micro-batch. `proximal` None: it is the current policy. `reference` None: no KL term. `weight`:
    None: from each token's own. `size`: size of its mini-batch."""

    def __init__(
        self,
        micro: MicroBatch,
        proximal: Tensor | None,
        reference: ReferenceTerm | None,
        weight: Weight | None,
        hyper: Hyper,
        size: Size,
    ) -> None:
        super().__init__(micro, reference, hyper)
        self._proximal, self._weight, self._size = proximal, weight, size

    def of_chunk(self, current: Tensor, cut: slice) -> Tensor:
        """Return the part of the loss of some tokens."""
        weight = None if self._weight is None else Weight(*(column[cut] for column in self._weight))
        value = token_loss(self._choices, self._terms(current, cut), self._hyper, weight).value
        loss = self._mean(value, cut, self._size)
        return loss if self._reference is None else loss + self._kl(self._reference, current, cut)

    def linear_at(self, current: Tensor) -> ChunkLoss:
        """Return a loss per token with the gradient that the whole loss has at these log-probabilities."""
        leaf = current.detach().clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.of_chunk(leaf, slice(None)), leaf)
        return lambda some, cut: (some * gradient[cut]).sum()

    @torch.no_grad()
    def record(self, fused: FusedLoss, metrics: StepMetrics) -> None:
        """Add the micro-batch to the metrics."""
        terms = self._terms(fused.logprobs, slice(None))
        if self._reference is not None:
            metrics.add_reference(reference_kl(fused.logprobs, self._reference.logprobs))
        loss = float(self.of_chunk(fused.logprobs, slice(None)))
        of_tokens = token_loss(self._choices, terms, self._hyper, self._weight)
        metrics.add(terms, of_tokens, self._micro.age, loss, fused.entropy)

    def _terms(self, current: Tensor, cut: slice) -> LossInputs:
        micro = self._micro
        return LossInputs(
            current=current,
            proximal=current.detach() if self._proximal is None else self._proximal[cut],
            behaviour=micro.behaviour[cut],
            advantage=micro.advantage[cut],
            rollout=micro.row[cut],
            group=micro.group[cut],
            expected=micro.expected[cut],
        )
