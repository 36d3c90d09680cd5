"""A step's metrics are reported in total and by age."""

import random

import pytest
from transformers import PreTrainedModel

from coordinator.learner import step
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
