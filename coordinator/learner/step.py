"""Make one GRPO step: a batch of groups in, new weights and metrics out.

Rules
1. The proximal policy is the model at the start of the step. With one mini-batch it equals the current policy, so its
   forward pass is skipped; with more it is computed for all of them before the first update.
2. A mini-batch's loss is a mean over it (learner/aggregates.py), independent of its division into micro-batches.
3. A batch without signal changes no weight (not even by momentum), but counts as a step. Only a KL term that covers
   groups without signal moves weights then.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coordinator.learner.aggregates import Size
from coordinator.learner.batch import MicroBatch, Rows, TrainRow, pack, rows, split
from coordinator.learner.batch_groups import TrainBatch, described
from coordinator.learner.batch_loss import BatchLoss, FlatLoss, ReferenceTerm, needs_first_pass, weights_of
from coordinator.learner.cut_rollouts import CutRule
from coordinator.learner.fused_head import ChunkLoss, FusedLoss, fused_loss
from coordinator.learner.hidden_states import cost_of, predicting_states
from coordinator.learner.logprobs import token_logprobs
from coordinator.learner.messages import Hyper
from coordinator.learner.model import head_of
from coordinator.learner.objective_choices import OF_ROLLOUTS, choices_of
from coordinator.learner.optimiser import Optimiser
from coordinator.learner.step_metrics import StepMetrics
from tasks.turn_ends import Ends


def train_step(
    model: PreTrainedModel,
    optimiser: Optimiser,
    batch: TrainBatch,
    hyper: Hyper,
    *,
    steps: int,
    reference: PreTrainedModel | None = None,
    limit: int = 0,
    ends: Ends = (),
) -> dict[str, float]:
    """Make one step; return the metrics of messages.Stepped. `steps`: earlier steps of this optimiser, for the rate's
    warm-up. `reference`: the run's base, needed if `kl_coefficient` > 0. `limit`, `ends`: of messages.Open. Raises
    BadBatch before any change."""
    whole = hyper.kl_groups == "all" and hyper.kl_coefficient > 0
    cut = CutRule(hyper.cut_rollouts, hyper.cut_penalty, limit, ends)
    train_rows = rows(batch, hyper.advantage, cut, flat=whole)
    minis = list(mini_batches(model, train_rows, hyper, limit))
    proximals = [[frozen_logprobs(model, micro) for micro in mini.micros] if len(minis) > 1 else None for mini in minis]
    learning_rate = optimiser.learning_rate(steps)
    metrics, norms = StepMetrics(), []
    metrics.add_masked(train_rows.masked)
    for mini, proximal in zip(minis, proximals, strict=True):
        accumulate(model, mini, proximal, hyper, metrics, optimiser, reference)
        norms.append(optimiser.update(learning_rate))
    return {
        **metrics.metrics(len(minis)),
        **described(batch),
        "grad_norm": max(norms, default=0.0),
        "updates": float(len(norms)),
        "skipped_updates": float(sum(not math.isfinite(norm) for norm in norms)),
        "learning_rate": learning_rate,
        "zero_variance": train_rows.zero_variance / max(1, len(batch.groups)),
    }


@torch.no_grad()
def frozen_logprobs(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
    """Return the sampled tokens' log-probabilities, float32 [n], without gradient."""
    return token_logprobs(model, micro)


class MiniBatch(NamedTuple):
    """The rollouts of one update. `micros`: with signal. `flat`: those of groups without, for the KL term alone.
    `size`, `kl_size`: by which the loss and its KL term are divided."""

    micros: list[MicroBatch]
    flat: list[MicroBatch]
    size: Size
    kl_size: Size


def mini_batches(model: PreTrainedModel, train_rows: Rows, hyper: Hyper, limit: int = 0) -> Iterator[MiniBatch]:
    """Yield the mini-batches of a step, on the model's device. `limit`: most sampled tokens per rollout."""
    parts, flat = split(train_rows.groups, hyper.minibatches), split(train_rows.flat, hyper.minibatches)
    cost = cost_of(model)
    pairs: list[tuple[list[list[TrainRow]], ...]] = list(zip_longest(parts, flat, fillvalue=[]))
    for pair in pairs:
        of_signal, of_flat = (
            [micro.to(model.device) for micro in pack(part, hyper.microbatch_tokens, cost)] for part in pair
        )
        drawn = Size(train_rows.tokens / len(pairs), train_rows.rollouts / len(pairs), limit)
        size = drawn if hyper.denominator == "all" else size_of(of_signal, limit)
        kl_size = size_of([*of_signal, *of_flat], limit) if train_rows.flat else size
        yield MiniBatch(of_signal, of_flat, size, kl_size)


def size_of(micros: Sequence[MicroBatch], limit: int) -> Size:
    """Return the size of these micro-batches together."""
    return Size(sum(len(micro.target) for micro in micros), sum(len(micro.rows) for micro in micros), limit)


def accumulate(
    model: PreTrainedModel,
    mini: MiniBatch,
    proximal: Sequence[Tensor] | None,
    hyper: Hyper,
    metrics: StepMetrics,
    optimiser: Optimiser,
    reference: PreTrainedModel | None,
) -> None:
    """Add the gradients of one mini-batch's mean loss to the optimiser's masters. `proximal` None: it is the current
    policy."""

    def base(micro: MicroBatch) -> ReferenceTerm | None:
        if reference is None or hyper.kl_coefficient == 0:
            return None
        return ReferenceTerm(frozen_logprobs(reference, micro), mini.kl_size)

    def backward(micro: MicroBatch, loss_of: ChunkLoss) -> FusedLoss:
        fused = fused_loss(head_of(model), predicting_states(model, micro), micro.target, loss_of)
        torch.autograd.backward(fused.loss)
        optimiser.collect()
        return fused

    choices, first = choices_of(hyper), None
    if needs_first_pass(choices, proximal=proximal is not None):
        first = [frozen_logprobs(model, micro) for micro in mini.micros]
    weights = weights_of(choices, mini.micros, first, proximal, hyper)
    for number, (micro, weight) in enumerate(zip(mini.micros, weights, strict=True)):
        earlier = None if proximal is None else proximal[number]
        batch_loss = BatchLoss(micro, earlier, base(micro), weight, hyper, mini.size)
        loss_of: ChunkLoss = batch_loss.of_chunk
        if first is not None and choices.surrogate in OF_ROLLOUTS:
            loss_of = batch_loss.linear_at(first[number])
        batch_loss.record(backward(micro, loss_of), metrics)
    for micro in mini.flat:
        term = base(micro)
        if term is not None:
            flat_loss = FlatLoss(micro, term, hyper)
            flat_loss.record(backward(micro, flat_loss.of_chunk), metrics)
