"""Make one GRPO step: a batch of groups in, new weights and metrics out.

Rules
1. The proximal policy is the model at the start of the step. With one mini-batch it equals the current policy, so its
   forward pass is skipped; with more it is computed for all of them before the first update.
2. A mini-batch's loss is a mean over it (learner/objective/aggregates.py), independent of its division into
   micro-batches and among ranks: each rank sums over its own tokens, and the sizes by which all divide are totals of
   the ranks.
3. A pass needs all ranks (learner/ranks/sharded_model.py). So each makes as many as the rank that has most: with passes
   without a sampled token, whose loss and gradients are 0.
4. A batch without signal changes no weight (not even by momentum), but counts as a step. Only a KL term that covers
   groups without signal moves weights then.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo2.coordinator.learner.batches.batch import MicroBatch, Rows, empty_micro_batch, pack, rows
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, batch_metrics
from echo2.coordinator.learner.batches.cut_rollouts import CutRule
from echo2.coordinator.learner.batches.dealing import Share, shares
from echo2.coordinator.learner.batches.hidden_states import cost_of, predicting_states
from echo2.coordinator.learner.batches.logprobs import token_logprobs
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.model import head_of, within
from echo2.coordinator.learner.objective.aggregates import Size
from echo2.coordinator.learner.objective.batch_loss import (
    BatchLoss,
    FlatLoss,
    ReferenceTerm,
    needs_first_pass,
    weights_of,
)
from echo2.coordinator.learner.objective.fused_head import ChunkLoss, FusedLoss, fused_loss
from echo2.coordinator.learner.objective.step_metrics import StepMetrics
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.ranks.ranks import ONLY_RANK, Ranks
from echo2.coordinator.settings.objective_choices import OF_ROLLOUTS, choices_of
from echo2.tasks.turn_ends import Ends


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
    """Make one step with one rank; return the metrics of messages.Stepped. `steps`: earlier steps of this optimiser,
    for the rate's warm-up. `reference`: the run's base, needed if `kl_coefficient` > 0. `limit`, `ends`: limit and ends
    of messages.Open. Raises BadBatch before any change."""
    train_rows = rows_of(batch, hyper, limit, ends)
    (share,) = shares(train_rows, hyper.minibatches)
    done = train_share(model, optimiser, share, hyper, steps=steps, reference=reference, limit=limit)
    return metrics_of(batch, train_rows, done)


def rows_of(batch: TrainBatch, hyper: Hyper, limit: int, ends: Ends) -> Rows:
    """Return the rollouts that a step needs. Raises BadBatch."""
    whole = hyper.kl_groups == "all" and hyper.kl_coefficient > 0
    cut = CutRule(hyper.cut_rollouts, hyper.cut_penalty, limit, ends)
    return rows(batch, hyper.advantage, cut, flat=whole, contrast=hyper.contrast)


class Updates(NamedTuple):
    """The updates of a step. `metrics`: metrics of the tokens of all ranks. `norms`: norms of the gradients, one per
    update."""

    metrics: StepMetrics
    norms: list[float]
    learning_rate: float


def train_share(
    model: PreTrainedModel,
    optimiser: Optimiser,
    share: Share,
    hyper: Hyper,
    *,
    steps: int,
    reference: PreTrainedModel | None = None,
    limit: int = 0,
    ranks: Ranks = ONLY_RANK,
) -> Updates:
    """Make this rank's part of a step, together with the others. The arguments are those of `train_step`."""
    minis = list(mini_batches(model, share, hyper, limit, ranks))
    proximals = [[frozen_logprobs(model, micro) for micro in mini.micros] if len(minis) > 1 else None for mini in minis]
    learning_rate = optimiser.learning_rate(steps)
    metrics, norms = StepMetrics(), []
    for mini, proximal in zip(minis, proximals, strict=True):
        accumulate(model, mini, proximal, hyper, metrics, optimiser, reference, ranks)
        norms.append(optimiser.update(learning_rate))
    return Updates(metrics.of_all(ranks, share.ages), norms, learning_rate)


def metrics_of(batch: TrainBatch, train_rows: Rows, done: Updates) -> dict[str, float]:
    """Return the metrics of a step. `train_rows`: train rows of the whole batch."""
    done.metrics.add_masked(train_rows.masked)
    return {
        **done.metrics.metrics(len(done.norms)),
        **batch_metrics(batch),
        "grad_norm": max(done.norms, default=0.0),
        "updates": float(len(done.norms)),
        "skipped_updates": float(sum(not math.isfinite(norm) for norm in done.norms)),
        "learning_rate": done.learning_rate,
        "zero_variance": train_rows.zero_variance / max(1, len(batch.groups)),
        "unselected": train_rows.unselected / max(1, train_rows.rollouts),
    }


@torch.no_grad()
def frozen_logprobs(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
    """Return the sampled tokens' log-probabilities, float32 [n], without gradient."""
    return within(model, lambda: token_logprobs(model, micro))


class MiniBatch(NamedTuple):
    """The rollouts of one update. `micros`: micros with signal. `flat`: those of groups without, for the KL term alone.
    `size`, `kl_size`: size and kl size by which the loss and its KL term are divided."""

    micros: list[MicroBatch]
    flat: list[MicroBatch]
    size: Size
    kl_size: Size


def mini_batches(
    model: PreTrainedModel, share: Share, hyper: Hyper, limit: int = 0, ranks: Ranks = ONLY_RANK
) -> Iterator[MiniBatch]:
    """Yield this rank's part of a step's mini-batches, on the model's device. `limit`: most sampled tokens per
    rollout."""
    cost = cost_of(model)
    drawn = Size(share.tokens / max(1, len(share.minis)), share.rollouts / max(1, len(share.minis)), limit)
    for mini in share.minis:
        of_signal, of_flat = (
            [micro.to(model.device) for micro in pack(part, hyper.microbatch_tokens, cost)] for part in mini
        )
        size = drawn if hyper.denominator == "all" else size_of(of_signal, limit, ranks)
        kl_size = size_of([*of_signal, *of_flat], limit, ranks) if share.covers_flat else size
        for part in (of_signal, of_flat):
            part += [empty_micro_batch().to(model.device)] * (ranks.most(len(part)) - len(part))
        yield MiniBatch(of_signal, of_flat, size, kl_size)


def size_of(micros: Sequence[MicroBatch], limit: int, ranks: Ranks) -> Size:
    """Return the size of these micro-batches together, on all ranks."""
    counts = [sum(len(micro.target) for micro in micros), sum(len(micro.rows) for micro in micros)]
    tokens, rollouts = ranks.total(torch.tensor(counts)).tolist()
    return Size(tokens, rollouts, limit)


def accumulate(
    model: PreTrainedModel,
    mini: MiniBatch,
    proximal: Sequence[Tensor] | None,
    hyper: Hyper,
    metrics: StepMetrics,
    optimiser: Optimiser,
    reference: PreTrainedModel | None,
    ranks: Ranks = ONLY_RANK,
) -> None:
    """Add the gradients of one mini-batch's mean loss to the optimiser's masters. `proximal` None: it is the current
    policy."""

    def base(micro: MicroBatch) -> ReferenceTerm | None:
        if reference is None or hyper.kl_coefficient == 0:
            return None
        return ReferenceTerm(frozen_logprobs(reference, micro), mini.kl_size)

    def backward(micro: MicroBatch, loss_of: ChunkLoss) -> FusedLoss:
        fused = within(
            model, lambda: fused_loss(head_of(model), predicting_states(model, micro), micro.target, loss_of)
        )
        torch.autograd.backward(fused.loss)
        optimiser.collect()
        return fused

    choices, first = choices_of(hyper), None
    if needs_first_pass(choices, proximal=proximal is not None):
        first = [frozen_logprobs(model, micro) for micro in mini.micros]
    weights = weights_of(choices, mini.micros, first, proximal, hyper, ranks)
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
