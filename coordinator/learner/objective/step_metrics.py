"""Compute a step's metrics from its tokens: sums over micro-batches, in total and by age.

ess         (sum w)^2 / (n sum w^2), w = proximal/behaviour: the share of tokens that effectively count (Kish)
log_ratio2  mean of log(w)^2: M2PO's measure of staleness (arXiv 2510.01161)
kl          mean of w - 1 - log w: the k3 estimate of KL(behaviour || proximal)
clipped, truncated   shares of tokens (learner/objective/loss_terms.py)
masked      share of tokens whose weight was set to 0, or whose rollout has no loss as the limit cut it
entropy     the policy's, from its logits, mean over the sampled tokens; absent without tokens

All are of groups with signal. batch_groups.py adds reward and length, of all groups, in total and by age.

Only in total:
loss          mean over the mini-batches
surprise      mean of -log behaviour; absent without tokens
kl_reference  mean KL to the reference model, k3; only with a reference
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from echo2.coordinator.learner.objective.loss_terms import LossInputs, TokenLoss, ratio
from echo2.coordinator.learner.ranks.ranks import Ranks


class _Sums(NamedTuple):
    tokens: float
    weight: float
    weight2: float
    log_ratio2: float
    kl: float
    clipped: float
    truncated: float
    masked: float
    surprise: float
    entropy: float

    def shares(self, dropped: int) -> dict[str, float]:
        """Return the metrics. `dropped`: sampled tokens of rollouts that were masked whole."""
        n = self.tokens
        return {
            "ess": self.weight**2 / (n * self.weight2),
            "log_ratio2": self.log_ratio2 / n,
            "kl": self.kl / n,
            "clipped": self.clipped / n,
            "truncated": self.truncated / n,
            "masked": (self.masked + dropped) / (n + dropped),
            "entropy": self.entropy / n,
        }


class StepMetrics:
    """Sums over the micro-batches of a step. `metrics` returns the names above; those by age have `_age_<n>`
    appended."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}
        self._loss = 0.0
        self._dropped: dict[int, int] = {}
        self._reference = torch.zeros(2, dtype=torch.float64)
        """Sum and number of the divergences from the reference."""

    def add(self, terms: LossInputs, token_loss: TokenLoss, age: Tensor, loss: float, entropy: Tensor) -> None:
        """Add a micro-batch. `loss`: its part of the step's loss. `entropy`: entropy of the policy at each token."""
        columns = _columns(terms, token_loss, entropy)
        for value in sorted(set(age.tolist())):
            part = columns[age == value].sum(0).cpu()
            self._sums[value] = self._sums[value] + part if value in self._sums else part
        self._loss += loss

    def add_masked(self, rollouts: Iterable[tuple[int, int]]) -> None:
        """Add rollouts without a loss, as (age, sampled tokens)."""
        for age, tokens in rollouts:
            self._dropped[age] = self._dropped.get(age, 0) + tokens

    def add_reference(self, divergence: Tensor) -> None:
        """Add `divergence`: KL to the reference, float32 [n]."""
        self._reference += torch.tensor([float(divergence.detach().double().sum()), len(divergence)])

    def add_flat(self, divergence: Tensor, loss: float) -> None:
        """Add a micro-batch of groups without signal, which has the KL term alone."""
        self.add_reference(divergence)
        self._loss += loss

    def of_all(self, ranks: Ranks, ages: int) -> "StepMetrics":
        """Return the sums over all ranks. `ages`: one more than the greatest age on any of them."""
        if ranks.count == 1:
            return self
        table = torch.zeros((ages, len(_Sums._fields)), dtype=torch.float64)
        for age, sums in self._sums.items():
            table[age] = sums
        loss = torch.tensor([self._loss], dtype=torch.float64)
        together = ranks.total(torch.cat([table.flatten(), self._reference, loss]))
        result = StepMetrics()
        table, result._reference, result._loss = together[:-3].view_as(table), together[-3:-1], float(together[-1])
        result._sums = {age: sums for age, sums in enumerate(table) if sums[0]}
        return result

    def metrics(self, minibatches: int) -> dict[str, float]:
        """Return the metrics. Without tokens (no group has signal) they have neutral values. `minibatches`: number of
        mini-batches, for the mean loss."""
        by_age = {age: _Sums(*sums.tolist()) for age, sums in sorted(self._sums.items())}
        divergence, compared = self._reference.tolist()
        reference = {"kl_reference": divergence / compared} if compared else {}
        loss = self._loss / max(1, minibatches)
        if not by_age:
            none = {"ess": 1.0, "log_ratio2": 0.0, "kl": 0.0, "clipped": 0.0, "truncated": 0.0}
            none["masked"] = 1.0 if self._dropped else 0.0
            return {"loss": loss, **none, **reference}
        total = _Sums(*map(sum, zip(*by_age.values(), strict=True)))
        shares = total.shares(sum(self._dropped.values()))
        metrics = {"loss": loss, "surprise": total.surprise / total.tokens, **shares}
        for age, sums in by_age.items():
            metrics |= {f"{name}_age_{age}": value for name, value in sums.shares(self._dropped.get(age, 0)).items()}
        return metrics | reference


@torch.no_grad()
def _columns(terms: LossInputs, token_loss: TokenLoss, entropy: Tensor) -> Tensor:
    """Return the terms of the sums, float64 [n, 10], in the order of _Sums. `surprise` is -log behaviour."""
    weight = ratio(terms.proximal, terms.behaviour).double()
    log_ratio = weight.log()
    return torch.stack(
        [
            torch.ones_like(weight),
            weight,
            weight.square(),
            log_ratio.square(),
            weight - 1 - log_ratio,
            token_loss.clipped.double(),
            token_loss.truncated.double(),
            token_loss.masked.double(),
            -terms.behaviour.double(),
            entropy.double(),
        ],
        dim=1,
    )
