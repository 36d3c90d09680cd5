"""The optimiser rounds its masters into the model, and refuses gradients that are not finite."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from coordinator.learner import model, step
from coordinator.learner.messages import Hyper
from coordinator.learner.optimiser import Optimiser, publishable
from tests.support import adapted
from tests.support.tiny_learner import batch
from weights.lora.adapter_config import INNER, OUTER


def test_the_model_holds_the_masters_rounded_and_small_updates_add_up(policy: PreTrainedModel) -> None:
    hyper = Hyper(learning_rate=1e-6, warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    start = {name: master.detach().clone() for name, master in optimiser.masters.items()}
    for number in (1, 2, 3):
        step.train_step(policy, optimiser, batch(number), hyper, steps=number - 1)
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(policy.get_parameter(name), publishable(optimiser.masters[name]).float())
    assert (optimiser.masters[name] - start[name]).abs().mean() > 1.5e-6


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_reported(policy: PreTrainedModel) -> None:
    hyper = Hyper(warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    before = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
    train_batch = batch(1)
    train_batch.groups[0].samples[0].behaviour[0] = float("nan")
    assert step.train_step(policy, optimiser, train_batch, hyper, steps=0)["skipped_updates"] == 1.0
    assert optimiser.tensors().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimiser.tensors().items())


def test_the_rate_warms_up_linearly_and_then_stays(policy: PreTrainedModel) -> None:
    optimiser = Optimiser(policy, Hyper(learning_rate=1.0, warmup_steps=4))
    assert [optimiser.learning_rate(steps) for steps in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_frozen_base_has_no_master_and_never_changes(tmp_path: Path, compute: str) -> None:
    policy = model.load(adapted.make(tmp_path), "cpu")
    hyper = Hyper(learning_rate=1e-2, warmup_steps=0, compute_dtype=compute)
    optimiser = Optimiser(policy, hyper)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    for number in (1, 2):
        step.train_step(policy, optimiser, batch(number), hyper, steps=number - 1)
    changed = {name for name, tensor in policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert changed <= set(optimiser.masters)
    assert all(name.endswith((INNER, OUTER)) for name in optimiser.masters)
