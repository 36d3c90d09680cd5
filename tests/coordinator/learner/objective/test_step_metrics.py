"""A step's metrics are reported in total and by age."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from echo2.coordinator.learner import model, step
from echo2.coordinator.learner.batches.batch import rows
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, TrainGroup
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.web import step_rows
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


def test_every_metric_by_age_is_the_one_of_a_batch_of_that_age_alone(policy: PreTrainedModel) -> None:
    chance = random.Random(8)
    ages = {0: group(chance, "new", 8, turns=(4,)), 3: group(chance, "old", 5, turns=(6,))}
    folder, hyper = Path(policy.name_or_path), Hyper(weight="token_mask")

    def metrics(groups: list[TrainGroup]) -> dict[str, float]:
        fresh = model.load(folder, "cpu")
        return step.train_step(fresh, Optimiser(fresh, hyper), TrainBatch(step=9, groups=groups), hyper, steps=0)

    both = metrics(list(ages.values()))
    for age, one in ages.items():
        alone = metrics([one])
        for name in step_rows.COLUMNS:
            assert both[f"{name}_age_{age}"] == pytest.approx(alone[name], rel=1e-5), name
    assert both["masked"] > 0
    assert both["length"] == 5.0


def test_rollouts_masked_whole_count_as_masked_tokens(policy: PreTrainedModel) -> None:
    train_batch, hyper = TrainBatch(step=1, groups=[group(random.Random(2), "g")]), Hyper(cut_rollouts="masked")
    train_batch.groups[0].samples[1].tokens[-1] = 12
    ends = tuple(range(2, 12))
    metrics = step.train_step(policy, Optimiser(policy, hyper), train_batch, hyper, steps=0, ends=ends)
    assert (metrics["masked"], metrics["masked_age_0"], metrics["tokens"]) == (0.25, 0.25, 20.0)


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
