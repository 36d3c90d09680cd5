"""Make one GRPO step: a batch of groups in, new weights and metrics out.

Rules
1. The proximal policy is the model at the start of the step. With one mini-batch it equals the current policy, so its
   forward pass is skipped; with more it is computed for all of them before the first update.
2. A mini-batch's loss is a mean over it (learner/objective/aggregates.py), independent of its division into
   micro-batches and among ranks: each rank sums over its own tokens, and the sizes by which all divide are totals of
   the ranks.
3. A pass needs all ranks (learner/ranks/sharded_model.py). So each makes as many as the rank that has most: with passes
   without a sampled token, whose loss and gradients are 0.
4. A pass that runs out of memory changes nothing: the step goes on from the passes before it, with smaller ones
   (learner/pass_sizes.py).
5. A batch without signal changes no weight (not even by momentum), but counts as a step. Only a KL term that covers
   groups without signal moves weights then.
"""

import copy
import math
from collections.abc import Mapping, Sequence
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
from echo2.coordinator.learner.pass_sizes import PassSizes, TooLittleMemory, within_memory
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
    sizes: PassSizes | None = None,
) -> dict[str, float]:
    """Make one step with one rank; return the metrics of messages.Stepped. `steps`: earlier steps of this optimiser,
    for the rate's warm-up. `reference`: the run's base, needed if `kl_coefficient` > 0. `limit`, `ends`: limit and ends
    of messages.Open. `sizes`: sizes of the passes; None: `microbatch_tokens`. Raises BadBatch before any change;
    TooLittleMemory."""
    train_rows = rows_of(batch, hyper, limit, ends)
    (share,) = shares(train_rows, hyper.minibatches)
    progress = StepProgress(sizes or PassSizes(tokens=hyper.microbatch_tokens))
    done = within_memory(
        lambda: train_share(model, optimiser, share, hyper, progress, steps=steps, reference=reference, limit=limit),
        optimiser.drop_gradients, progress.sizes, share.longest, str(model.device),
    )  # fmt: skip
    return metrics_of(batch, train_rows, done)


def rows_of(batch: TrainBatch, hyper: Hyper, limit: int, ends: Ends) -> Rows:
    """Return the rollouts that a step needs. Raises BadBatch."""
    whole = hyper.kl_groups == "all" and hyper.kl_coefficient > 0
    return rows(batch, hyper.advantage, CutRule(hyper.cut_rollouts, limit, ends), flat=whole)


class Updates(NamedTuple):
    """The updates of a step. `metrics`: metrics of the tokens of all ranks. `norms`: norms of the gradients, one per
    update."""

    metrics: StepMetrics
    norms: list[float]
    learning_rate: float


class StepProgress:
    """The finished passes of a step (rule 4). `sizes`: sizes of its passes. `proximals`: proximal log-probabilities of
    each mini-batch, by the `id` of a rollout's row. `norms`: norms of the gradients, one per update."""

    def __init__(self, sizes: PassSizes) -> None:
        self.sizes, self.metrics = sizes, StepMetrics()
        self.proximals: list[dict[int, Tensor]] = []
        self.norms: list[float] = []


def train_share(
    model: PreTrainedModel,
    optimiser: Optimiser,
    share: Share,
    hyper: Hyper,
    progress: StepProgress,
    *,
    steps: int,
    reference: PreTrainedModel | None = None,
    limit: int = 0,
    ranks: Ranks = ONLY_RANK,
) -> Updates:
    """Make this rank's part of a step, together with the others, from `progress` on. The other arguments are those of
    `train_step`. Raises torch.OutOfMemoryError."""
    count, sizes = len(share.minis), progress.sizes

    def mini_batch_of(number: int) -> MiniBatch:
        return mini_batch(model, share, number, sizes.tokens, hyper, limit, ranks)

    while count > 1 and len(progress.proximals) < count:
        micros = mini_batch_of(len(progress.proximals)).micros
        progress.proximals.append(_by_rollout(micros, [frozen_logprobs(model, micro, hyper) for micro in micros]))
        sizes.finish_pass()
    learning_rate = optimiser.learning_rate(steps)
    while len(progress.norms) < count:
        number, metrics = len(progress.norms), copy.deepcopy(progress.metrics)
        mini = mini_batch_of(number)
        proximal = [_of_micro(progress.proximals[number], micro) for micro in mini.micros] if count > 1 else None
        accumulate(model, mini, proximal, hyper, metrics, optimiser, reference, ranks)
        sizes.finish_pass()
        progress.norms.append(_update(optimiser, learning_rate))
        progress.metrics = metrics
    return Updates(progress.metrics.of_all(ranks, share.ages), progress.norms, learning_rate)


def _update(optimiser: Optimiser, learning_rate: float) -> float:
    """Update the weights; return the gradient's norm. An update cannot be repeated. Raises TooLittleMemory."""
    try:
        return optimiser.update(learning_rate)
    except torch.OutOfMemoryError as error:
        raise TooLittleMemory(f"the memory is too small for an update of the weights: {error}") from error


def _by_rollout(micros: Sequence[MicroBatch], values: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return values of the sampled tokens, [n] per micro-batch, by rollout: `id` of its row."""
    return {
        id(row): part
        for micro, value in zip(micros, values, strict=True)
        for row, part in zip(micro.rows, torch.split(value, [len(row.targets) for row in micro.rows]), strict=True)
        if len(part)
    }


def _of_micro(by_rollout: Mapping[int, Tensor], micro: MicroBatch) -> Tensor:
    """Return the values of a micro-batch's sampled tokens, float32 [n]."""
    return torch.cat([micro.behaviour[:0], *(by_rollout[id(row)] for row in micro.rows if len(row.targets))])


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
    }


@torch.no_grad()
def frozen_logprobs(model: PreTrainedModel, micro: MicroBatch, hyper: Hyper) -> Tensor:
    """Return the sampled tokens' log-probabilities, float32 [n], without gradient."""
    return within(model, lambda: token_logprobs(model, micro, temperature=hyper.temperature))


class MiniBatch(NamedTuple):
    """The rollouts of one update. `micros`: micros with signal. `flat`: those of groups without, for the KL term alone.
    `size`, `kl_size`: size and kl size by which the loss and its KL term are divided."""

    micros: list[MicroBatch]
    flat: list[MicroBatch]
    size: Size
    kl_size: Size


def mini_batch(
    model: PreTrainedModel, share: Share, number: int, tokens: int, hyper: Hyper, limit: int = 0,
    ranks: Ranks = ONLY_RANK,
) -> MiniBatch:  # fmt: skip
    """Return this rank's part of a mini-batch, on the model's device. `number`: which of the step's. `tokens`: most
    tokens of a micro-batch. `limit`: most sampled tokens per rollout."""
    cost = cost_of(model)
    of_signal, of_flat = (
        [micro.to(model.device) for micro in pack(part, tokens, cost)] for part in share.minis[number]
    )
    drawn = Size(share.tokens / len(share.minis), share.rollouts / len(share.minis), limit)
    size = drawn if hyper.denominator == "all" else size_of(of_signal, limit, ranks)
    kl_size = size_of([*of_signal, *of_flat], limit, ranks) if share.covers_flat else size
    for part in (of_signal, of_flat):
        part += [empty_micro_batch().to(model.device)] * (ranks.most(len(part)) - len(part))
    return MiniBatch(of_signal, of_flat, size, kl_size)


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
        return ReferenceTerm(frozen_logprobs(reference, micro, hyper), mini.kl_size)

    def backward(micro: MicroBatch, loss_of: ChunkLoss) -> FusedLoss:
        fused = within(
            model,
            lambda: fused_loss(
                head_of(model, hyper.temperature), predicting_states(model, micro), micro.target, loss_of
            ),
        )
        torch.autograd.backward(fused.loss)
        optimiser.collect()
        return fused

    choices, first = choices_of(hyper), None
    if needs_first_pass(choices, proximal=proximal is not None):
        first = [frozen_logprobs(model, micro, hyper) for micro in mini.micros]
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
