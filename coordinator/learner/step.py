"""Make one GRPO step: a batch of groups in, new weights and metrics out.

Rules
1. The proximal policy is the model at the start of the step. With one mini-batch it equals the current policy, so its
   forward pass is skipped; with more it is computed for all of them before the first update.
2. A mini-batch's loss is the mean over its sampled tokens, independent of its division into micro-batches.
3. A batch without signal changes no weight (not even by momentum), but counts as a step.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coordinator.learner.batch import MicroBatch, pack, rows, split
from coordinator.learner.batch_groups import TrainBatch, described
from coordinator.learner.fused_head import ChunkLoss, FusedLoss, fused_loss
from coordinator.learner.hidden_states import cost_of, predicting_states
from coordinator.learner.logprobs import token_logprobs
from coordinator.learner.loss import OF_ROLLOUTS, LossInputs, objective, reference_kl
from coordinator.learner.messages import Hyper
from coordinator.learner.model import head_of
from coordinator.learner.optimiser import Optimiser
from coordinator.learner.step_metrics import StepMetrics


def train_step(
    model: PreTrainedModel,
    optimiser: Optimiser,
    batch: TrainBatch,
    hyper: Hyper,
    *,
    steps: int,
    reference: PreTrainedModel | None = None,
) -> dict[str, float]:
    """Make one step; return the metrics of messages.Stepped. `steps`: earlier steps of this optimiser, for the rate's
    warm-up. `reference`: the run's base, needed if `kl_coefficient` > 0. Raises BadBatch before any change."""
    train_rows = rows(batch, hyper.advantage)
    parts = split(train_rows.groups, max(1, hyper.minibatches))
    cost = cost_of(model)
    minis = [[micro.to(model.device) for micro in pack(part, hyper.microbatch_tokens, cost)] for part in parts]
    proximals = [[frozen_logprobs(model, micro) for micro in mini] if len(minis) > 1 else None for mini in minis]
    learning_rate = optimiser.learning_rate(steps)
    metrics, norms = StepMetrics(), []
    for mini, proximal in zip(minis, proximals, strict=True):
        accumulate(model, mini, proximal, hyper, metrics, optimiser, reference)
        norms.append(optimiser.update(learning_rate))
    return {
        **metrics.metrics(len(minis)),
        **described(batch),
        "grad_norm": max(norms, default=0.0),
        "skipped_updates": float(sum(not math.isfinite(norm) for norm in norms)),
        "learning_rate": learning_rate,
        "zero_variance": train_rows.zero_variance / max(1, len(batch.groups)),
    }


@torch.no_grad()
def frozen_logprobs(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
    """Return the sampled tokens' log-probabilities, float32 [n], without gradient."""
    return token_logprobs(model, micro)


def accumulate(
    model: PreTrainedModel,
    mini: Sequence[MicroBatch],
    proximal: Sequence[Tensor] | None,
    hyper: Hyper,
    metrics: StepMetrics,
    optimiser: Optimiser,
    reference: PreTrainedModel | None,
) -> None:
    """Add the gradients of one mini-batch's mean loss to the optimiser's masters. `proximal` None: it is the current
    policy."""
    tokens = sum(len(micro.target) for micro in mini)
    for number, micro in enumerate(mini):
        reference_logprobs = None
        if reference is not None and hyper.kl_coefficient > 0:
            reference_logprobs = frozen_logprobs(reference, micro)
        batch_loss = _BatchLoss(
            micro, None if proximal is None else proximal[number], reference_logprobs, hyper, tokens
        )
        loss_of: ChunkLoss = batch_loss.of_chunk
        if hyper.objective in OF_ROLLOUTS:
            loss_of = batch_loss.linear_at(frozen_logprobs(model, micro))
        fused = fused_loss(head_of(model), predicting_states(model, micro), micro.target, loss_of)
        torch.autograd.backward(fused.loss)
        optimiser.collect()
        batch_loss.record(fused, metrics)


class _BatchLoss:
    """The loss of a micro-batch as a function of the current log-probabilities. `tokens`: sampled tokens of its
    mini-batch."""

    def __init__(
        self, micro: MicroBatch, proximal: Tensor | None, reference: Tensor | None, hyper: Hyper, tokens: int
    ) -> None:
        self._micro, self._proximal, self._reference = micro, proximal, reference
        self._hyper, self._tokens, self._objective = hyper, tokens, objective(hyper.objective)

    def of_chunk(self, current: Tensor, cut: slice) -> Tensor:
        """Return the part of the loss of some tokens."""
        value = self._objective(self._terms(current, cut), self._hyper).value
        if self._reference is not None:
            value = value + self._hyper.kl_coefficient * reference_kl(current, self._reference[cut])
        return value.sum() / self._tokens

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
        token_loss = self._objective(terms, self._hyper)
        if self._reference is not None:
            metrics.add_reference(reference_kl(fused.logprobs, self._reference))
        loss = float(self.of_chunk(fused.logprobs, slice(None)))
        metrics.add(terms, token_loss, self._micro.age, loss, fused.entropy)

    def _terms(self, current: Tensor, cut: slice) -> LossInputs:
        micro = self._micro
        return LossInputs(
            current=current,
            proximal=current.detach() if self._proximal is None else self._proximal[cut],
            behaviour=micro.behaviour[cut],
            advantage=micro.advantage[cut],
            rollout=micro.row[cut],
        )
