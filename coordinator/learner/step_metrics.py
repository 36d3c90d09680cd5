"""Compute a step's metrics from its tokens: sums over micro-batches, in total and by age.

ess         (sum w)^2 / (n sum w^2), w = proximal/behaviour: the share of tokens that effectively count (Kish)
log_ratio2  mean of log(w)^2: M2PO's measure of staleness (arXiv 2510.01161)
kl          mean of w - 1 - log w: the k3 estimate of KL(behaviour || proximal)
clipped, truncated   shares of tokens (learner/loss.py)

Only in total:
loss          mean over the mini-batches
entropy       the policy's, from its logits, mean over the sampled tokens; absent without tokens
surprise      mean of -log behaviour; absent without tokens
kl_reference  mean KL to the reference model, k3; only with a reference
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coordinator.learner.loss import LossInputs, TokenLoss, ratio


class _Sums(NamedTuple):
    tokens: float
    weight: float
    weight2: float
    log_ratio2: float
    kl: float
    clipped: float
    truncated: float
    surprise: float

    def shares(self) -> dict[str, float]:
        n = self.tokens
        return {
            "ess": self.weight**2 / (n * self.weight2),
            "log_ratio2": self.log_ratio2 / n,
            "kl": self.kl / n,
            "clipped": self.clipped / n,
            "truncated": self.truncated / n,
        }


class StepMetrics:
    """Sums over the micro-batches of a step. `metrics` returns the names above; those by age have `_age_<n>`
    appended."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}
        self._loss = self._entropy = 0.0
        self._reference: list[Tensor] = []

    def add(self, terms: LossInputs, token_loss: TokenLoss, age: Tensor, loss: float, entropy: Tensor) -> None:
        """Add a micro-batch. `loss`: its part of the step's loss. `entropy`: of the policy at each token."""
        columns = _columns(terms, token_loss)
        for value in sorted(set(age.tolist())):
            part = columns[age == value].sum(0).cpu()
            self._sums[value] = self._sums[value] + part if value in self._sums else part
        self._loss += loss
        self._entropy += float(entropy.double().sum())

    def add_reference(self, divergence: Tensor) -> None:
        """Add `divergence`: KL to the reference, float32 [n]."""
        self._reference.append(divergence.detach())

    def metrics(self, minibatches: int) -> dict[str, float]:
        """Return the metrics. Without tokens (no group has signal) they have neutral values. `minibatches`: number of
        mini-batches, for the mean loss."""
        by_age = {age: _Sums(*sums.tolist()) for age, sums in sorted(self._sums.items())}
        if not by_age:
            return {"loss": 0.0, "ess": 1.0, "log_ratio2": 0.0, "kl": 0.0, "clipped": 0.0, "truncated": 0.0}
        total = _Sums(*map(sum, zip(*by_age.values(), strict=True)))
        entropy, surprise = self._entropy / total.tokens, total.surprise / total.tokens
        metrics = {"loss": self._loss / minibatches, "entropy": entropy, "surprise": surprise, **total.shares()}
        for age, sums in by_age.items():
            metrics |= {f"{name}_age_{age}": value for name, value in sums.shares().items()}
        if self._reference:
            metrics["kl_reference"] = float(torch.cat(self._reference).mean())
        return metrics


@torch.no_grad()
def _columns(terms: LossInputs, token_loss: TokenLoss) -> Tensor:
    """Return the terms of the sums, float64 [n, 8], in the order of _Sums. `surprise` is -log behaviour."""
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
            -terms.behaviour.double(),
        ],
        dim=1,
    )
