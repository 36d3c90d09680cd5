"""The optimiser rounds its masters into the model, and refuses gradients that are not finite."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from echo2.coordinator.learner import model, step
from echo2.coordinator.learner import moments as moments_module
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.ranks.split_master import publishable
from echo2.weights.lora.adapter_config import INNER_SUFFIX, OUTER_SUFFIX
from tests.support import adapted
from tests.support.tiny_learner import batch


def test_the_model_holds_the_masters_rounded_and_small_updates_add_up(policy: PreTrainedModel) -> None:
    hyper = Hyper(learning_rate=1e-6, warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    start = {name: optimiser.master(name) for name in optimiser.trained}
    for number in (1, 2, 3):
        step.train_step(policy, optimiser, batch(number), hyper, steps=number - 1)
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(policy.get_parameter(name), publishable(optimiser.master(name)).float())
    assert (optimiser.master(name) - start[name]).abs().mean() > 1.5e-6


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_reported(policy: PreTrainedModel) -> None:
    hyper = Hyper(warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    before = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
    train_batch = batch(1)
    train_batch.groups[0].samples[0].behaviour[0] = float("nan")
    assert step.train_step(policy, optimiser, train_batch, hyper, steps=0)["skipped_updates"] == 1.0
    assert optimiser.tensors().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimiser.tensors().items())


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_with_infinite_behaviour_log_probabilities_weights_and_moments_stay_numbers(
    policy: PreTrainedModel, value: float
) -> None:
    hyper = Hyper(warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    train_batch = batch(1)
    for sample in train_batch.groups[0].samples:
        sample.behaviour[:] = value
    step.train_step(policy, optimiser, train_batch, hyper, steps=0)
    assert all(bool(tensor.isfinite().all()) for _, tensor in optimiser.tensors().items())


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
    assert changed <= set(optimiser.trained)
    assert all(name.endswith((INNER_SUFFIX, OUTER_SUFFIX)) for name in optimiser.trained)


@pytest.mark.parametrize(("compute", "most"), [("float32", 18.1), ("bfloat16", 16.1)])
def test_the_state_has_18_bytes_per_parameter_and_16_in_bfloat16(
    policy: PreTrainedModel, compute: str, most: float
) -> None:
    hyper = Hyper(warmup_steps=0, compute_dtype=compute)
    optimiser = Optimiser(policy, hyper)
    step.train_step(policy, optimiser, batch(1), hyper, steps=0)
    assert optimiser.nbytes <= most * sum(parameter.numel() for parameter in policy.parameters())


def test_an_update_is_adams_of_the_masters(policy: PreTrainedModel) -> None:
    hyper = Hyper(learning_rate=1e-3, warmup_steps=0, weight_decay=0.1)
    optimiser = Optimiser(policy, hyper)
    theirs = {name: optimiser.master(name).requires_grad_() for name in optimiser.trained}
    groups = [
        {"params": [one for one in theirs.values() if one.ndim > 1]},
        {"params": [one for one in theirs.values() if one.ndim <= 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=1e-3, betas=hyper.betas, weight_decay=0.1)
    for number in (1, 2, 3):
        for name, parameter in policy.named_parameters():
            theirs[name].grad = torch.full_like(parameter, 0.01 * number).requires_grad_(False)
            parameter.grad = theirs[name].grad.clone()
        optimiser.collect()
        norm = float(torch.nn.utils.clip_grad_norm_(theirs.values(), hyper.gradient_clip))
        assert optimiser.update(1e-3) == pytest.approx(norm)
        adam.step()
    for name, master in theirs.items():
        torch.testing.assert_close(optimiser.master(name), master.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("compute", "one"), [("float32", True), ("bfloat16", False)])
def test_the_gradients_of_several_passes_take_the_memory_of_one_in_float32(
    policy: PreTrainedModel, compute: str, one: bool
) -> None:
    optimiser = Optimiser(policy, Hyper(compute_dtype=compute))
    name = "model.layers.0.mlp.down_proj.weight"
    parameter = policy.get_parameter(name)
    for number in (1, 2):
        torch.autograd.backward(number * parameter.float().square().sum())
        optimiser.collect()
        assert (parameter.grad is not None) == one
    gradient = optimiser.gradients()[name]
    assert gradient.dtype == torch.float32
    assert parameter.grad is None or parameter.grad.data_ptr() == gradient.data_ptr()
    torch.testing.assert_close(
        gradient, 6 * parameter.detach().float(), rtol=1e-2 if compute == "bfloat16" else 1e-6, atol=0
    )
    assert Optimiser(policy, Hyper(compute_dtype=compute)).gradients() == {}
    assert parameter.grad is None, "nothing of them is in another optimiser's first step"


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_moments_on_the_host_are_brought_by_pieces_and_give_the_same_bits(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, compute: str
) -> None:
    """A checkpoint of one is one of the other."""
    monkeypatch.setattr(moments_module, "HOST_ELEMENTS", 256)
    states = []
    for kinds in (("float32", "float32"), ("host", "host"), ("host", "float32"), ("float32", "host")):
        saved: dict[str, torch.Tensor] = {}
        for number, kind in enumerate(kinds, 1):
            hyper = Hyper(learning_rate=1e-2, warmup_steps=0, compute_dtype=compute, optimiser_state=kind)
            policy = model.load(model_folder, "cpu")
            optimiser = Optimiser(policy, hyper)
            if saved:
                optimiser.restore(saved)
            step.train_step(policy, optimiser, batch(number), hyper, steps=number - 1)
            saved = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
        states.append(saved)
    assert all(saved.keys() == states[0].keys() for saved in states)
    for name, tensor in states[0].items():
        assert all(torch.equal(tensor, saved[name]) for saved in states[1:]), name
    assert max(len(weight.moments.pieces) for weight in optimiser._weights.values() if weight.moments) > 4


def test_an_update_by_pieces_has_the_bits_of_one_of_the_whole(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for elements in (1 << 20, 1500):
        monkeypatch.setattr(moments_module, "CPU_ELEMENTS", elements)
        policy = model.load(model_folder, "cpu")
        optimiser = Optimiser(policy, Hyper(learning_rate=1e-2, warmup_steps=0))
        for number in (1, 2):
            step.train_step(policy, optimiser, batch(number), optimiser.hyper, steps=number - 1)
        states.append({name: tensor.clone() for name, tensor in optimiser.tensors().items()})
        most = max(len(weight.moments.pieces) for weight in optimiser._weights.values() if weight.moments)
        assert (most > 1) == (elements == 1500)
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_moments_in_8_bits_make_nearly_the_same_updates_and_a_checkpoint_of_theirs_the_same_bits(
    model_folder: Path,
) -> None:
    def trained(kinds: tuple[str, ...], *, resumed: bool) -> dict[str, torch.Tensor]:
        saved: dict[str, torch.Tensor] = {}
        for number, kind in enumerate(kinds):
            hyper = Hyper(learning_rate=1e-3, warmup_steps=0, optimiser_state=kind)
            if resumed or not saved:
                policy = model.load(model_folder, "cpu")
                optimiser = Optimiser(policy, hyper)
            if resumed and saved:
                optimiser.restore(saved)
            step.train_step(policy, optimiser, batch(number), hyper, steps=number)
            saved = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
        return saved

    base = model.load(model_folder, "cpu").state_dict()
    plain = trained(("float32",) * 4, resumed=False)
    coded, again = (trained(("8bit",) * 4, resumed=resumed) for resumed in (False, True))
    assert coded.keys() == plain.keys()
    assert all(torch.equal(coded[name], again[name]) for name in coded), "a resumed learner goes on to the bit"
    mixed = trained(("float32", "8bit", "host", "8bit"), resumed=True)
    for saved in (coded, mixed):
        name = "model.layers.0.mlp.down_proj.weight"
        moved, apart = plain[f"master.{name}"] - base[name], saved[f"master.{name}"] - plain[f"master.{name}"]
        assert 0 < apart.norm() < 0.1 * moved.norm()
    norms = [name for name in coded if name.startswith("exp_avg") and "norm" in name]
    assert norms
    assert all(torch.allclose(coded[name], plain[name], rtol=0.2, atol=1e-6) for name in norms)
