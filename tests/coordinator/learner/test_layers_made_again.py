"""A backward pass that computes layers again keeps less, and gives the same gradients."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from echo2.coordinator.learner import model, step
from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.coordinator.learner.batches.dealing import shares
from echo2.coordinator.learner.batches.hidden_states import predicting_states
from echo2.coordinator.learner.layers_made_again import make_layers_again
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.model import compute_type
from echo2.coordinator.learner.objective.step_metrics import StepMetrics
from echo2.coordinator.learner.optimiser import Optimiser
from tests.support.tiny_learner import batch, make_model


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a model with three layers."""
    return make_model(tmp_path_factory.mktemp("deep"), num_hidden_layers=3)


def gradients(policy: PreTrainedModel, train_batch: TrainBatch, hyper: Hyper) -> dict[str, torch.Tensor]:
    optimiser = Optimiser(policy, hyper)
    (share,) = shares(step.rows_of(train_batch, hyper, 16, ()), hyper.minibatches)
    mini = step.mini_batch(policy, share, 0, hyper.microbatch_tokens, hyper, 16)
    step.accumulate(policy, mini, None, hyper, StepMetrics(), optimiser, None)
    return {name: gradient.clone() for name, gradient in optimiser.gradients().items()}


@pytest.mark.parametrize("rollouts", ["laid out without padding", "one by one"])
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_layers_that_are_computed_again_give_the_same_gradients_bit_for_bit(
    deep: Path, compute: str, rollouts: str
) -> None:
    hyper = Hyper(compute_dtype=compute, microbatch_tokens=1 if rollouts == "one by one" else 1000)
    kept, again = (model.load(deep, "cpu") for _ in range(2))
    make_layers_again(again, "always", "cpu")
    expected, gradient_of = (gradients(one, batch(1), hyper) for one in (kept, again))
    assert expected.keys() == gradient_of.keys() == dict(kept.named_parameters()).keys()
    for name, gradient in expected.items():
        assert torch.equal(gradient, gradient_of[name]), name
        assert gradient.any()


def kept_bytes(policy: PreTrainedModel, train_batch: TrainBatch) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, without the parameters."""
    (share,) = shares(step.rows_of(train_batch, Hyper(), 16, ()), 1)
    mini = step.mini_batch(policy, share, 0, 1000, Hyper(), 16)
    (micro,) = mini.micros
    parameters = {one.untyped_storage().data_ptr() for one in policy.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    predicting_states(policy, micro)  # compares packed passes with the library's, once
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = predicting_states(policy, micro)
    assert states.requires_grad
    return sum(kept.values())


def test_layers_that_are_computed_again_keep_their_input_alone(deep: Path) -> None:
    kept, again = (model.load(deep, "cpu") for _ in range(2))
    make_layers_again(again, "always", "cpu")
    assert kept_bytes(again, batch(1)) < kept_bytes(kept, batch(1)) / 4


def test_by_default_a_gpu_computes_layers_again_in_bfloat16_and_a_cpu_keeps_them_in_float32(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation: True)
    assert compute_type("auto", "cpu") == torch.float32
    assert compute_type("auto", "cuda:1") == torch.bfloat16
    assert compute_type("float32", "cuda") == torch.float32
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation: including_emulation)
    assert compute_type("auto", "cuda") == torch.float32, "a card that only emulates the format"
    for device, changed in (("cpu", 0), ("cuda", 3)):
        policy = model.load(deep, "cpu")
        make_layers_again(policy, "auto", device)
        assert sum("forward" in vars(part) for part in policy.modules()) == changed
