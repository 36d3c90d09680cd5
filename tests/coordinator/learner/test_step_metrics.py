"""A step's metrics are reported in total and by age."""

import random

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from coordinator.learner import step
from coordinator.learner.batch import rows
from coordinator.learner.batch_groups import TrainBatch
from coordinator.learner.messages import Hyper
from coordinator.learner.optimiser import Optimiser
from tests.support.tiny_learner import group, on_policy


def test_metrics_are_reported_by_age(policy: PreTrainedModel) -> None:
    chance = random.Random(8)
    train_batch = on_policy(policy, TrainBatch(step=9, groups=[group(chance, "new", 8), group(chance, "old", 5)]))
    for one in train_batch.groups[1].samples:
        one.behaviour[:] -= 1.0
    metrics = step.train_step(policy, Optimiser(policy, Hyper()), train_batch, Hyper(), steps=0)
    assert (metrics["truncated_age_0"], metrics["truncated_age_3"], metrics["truncated"]) == (0.0, 1.0, 0.5)
    assert metrics["log_ratio2_age_3"] == pytest.approx(1.0, rel=1e-4)
    assert metrics["kl_age_3"] == pytest.approx(2.718281828 - 2, rel=1e-4)
    assert metrics["ess"] == pytest.approx((1 + 2.718281828) ** 2 / (2 * (1 + 2.718281828**2)), rel=1e-4)
    assert (metrics["staleness_mean"], metrics["staleness_max"]) == (1.5, 3.0)


def test_entropy_is_the_policys_and_the_behaviours_surprise_has_its_own_name(policy: PreTrainedModel) -> None:
    train_batch = TrainBatch(step=1, groups=[group(random.Random(8), "g")])
    with torch.no_grad():
        logs = [
            torch.log_softmax(policy(torch.from_numpy(row.tokens).long()[None]).logits[0], -1)[row.targets - 1]
            for row in rows(train_batch, "group").groups[0]
        ]
    entropy = float(torch.cat([-(one.exp() * one).sum(1) for one in logs]).mean())
    metrics = step.train_step(policy, Optimiser(policy, Hyper()), train_batch, Hyper(), steps=0)
    surprise = np.concatenate([-one.behaviour for one in train_batch.groups[0].samples]).mean()
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-4)
    assert metrics["surprise"] == pytest.approx(float(surprise), rel=1e-5)
