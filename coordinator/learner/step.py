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
from coordinator.learner.hidden_states import cost_of
from coordinator.learner.logprobs import token_logprobs
from coordinator.learner.loss import LossInputs, objective, reference_kl
from coordinator.learner.messages import Hyper
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
    of = objective(hyper.objective)
    tokens = sum(len(micro.target) for micro in mini)
    for number, micro in enumerate(mini):
        current = token_logprobs(model, micro)
        terms = LossInputs(
            current=current,
            proximal=current.detach() if proximal is None else proximal[number],
            behaviour=micro.behaviour,
            advantage=micro.advantage,
            rollout=micro.row,
        )
        token_loss = of(terms, hyper)
        value = token_loss.value
        if reference is not None and hyper.kl_coefficient > 0:
            divergence = reference_kl(current, frozen_logprobs(reference, micro))
            value = value + hyper.kl_coefficient * divergence
            metrics.add_reference(divergence)
        loss = value.sum() / tokens
        torch.autograd.backward(loss)
        optimiser.collect()
        metrics.add(terms, token_loss, micro.age, float(loss.detach()))
