import random
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from coordinator.learner import model, step
from coordinator.learner.batch import pack, rows
from coordinator.learner.batch_groups import TrainBatch
from coordinator.learner.logprobs import token_logprobs
from coordinator.learner.messages import Hyper
from coordinator.learner.optimiser import Optimiser, publishable
from coordinator.learner.step_metrics import StepMetrics
from tests.support.tiny_learner import batch, group


@pytest.fixture
def policy(model_folder: Path) -> PreTrainedModel:
    return model.load(model_folder, "cpu")


def on_policy(policy: PreTrainedModel, train_batch: TrainBatch) -> TrainBatch:
    """The batch with the behaviour's log-probabilities those of `policy`."""
    groups = []
    for part in train_batch.groups:
        samples = []
        for one in part.samples:
            logits = policy(torch.tensor([[*part.prompt, *one.tokens]])).logits[0, len(part.prompt) - 1 : -1]
            logs = torch.log_softmax(logits, -1).gather(1, torch.tensor(one.tokens).long()[:, None])[:, 0]
            samples.append(msgspec.structs.replace(one, behaviour=logs.detach().numpy()))
        groups.append(msgspec.structs.replace(part, samples=samples))
    return msgspec.structs.replace(train_batch, groups=groups)


def gradients(policy: PreTrainedModel, train_batch: TrainBatch, hyper: Hyper) -> dict[str, torch.Tensor]:
    optimiser = Optimiser(policy, hyper)
    mini = list(
        pack([row for part in rows(train_batch, hyper.advantage).groups for row in part], hyper.microbatch_tokens)
    )
    step.accumulate(policy, mini, None, hyper, StepMetrics(), optimiser, None)
    return {name: master.grad for name, master in optimiser.masters.items() if master.grad is not None}


def test_log_probabilities_in_chunks_are_those_of_the_models_own_logits_with_their_gradients(
    policy: PreTrainedModel,
) -> None:
    chance = random.Random(4)
    train_batch = TrainBatch(step=1, groups=[group(chance, "g", turns=(3, 2, 2)), group(chance, "h", turns=(6,))])
    (micro,) = pack([row for part in rows(train_batch, "group").groups for row in part], 10_000)
    logits = torch.log_softmax(policy(micro.tokens).logits, -1)
    expected = logits[micro.row, micro.position, micro.target]
    for chunk in (1 << 24, 64 * 7):
        logprobs = token_logprobs(policy, micro, chunk)
        torch.testing.assert_close(logprobs, expected)
        ours = torch.autograd.grad(logprobs.square().sum(), list(policy.parameters()))
        theirs = torch.autograd.grad(expected.square().sum(), list(policy.parameters()), retain_graph=True)
        torch.testing.assert_close(ours, theirs)


def test_micro_batches_give_the_gradient_of_one_batch(policy: PreTrainedModel) -> None:
    train_batch = batch(1, groups=6)
    whole = gradients(policy, train_batch, Hyper())
    parts = gradients(policy, train_batch, Hyper(microbatch_tokens=24))
    assert whole.keys() == parts.keys() == dict(policy.named_parameters()).keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-7)


def test_given_tokens_carry_no_loss(policy: PreTrainedModel) -> None:
    """The loss written out over the sampled tokens alone, from the model's own logits, has the same gradient."""
    train_batch = TrainBatch(step=1, groups=[group(random.Random(5), "g", turns=(2, 3, 2), samples=3)])
    gradient_of = gradients(policy, train_batch, Hyper(truncation=1e9))
    total = torch.zeros(())
    for row in (row for part in rows(train_batch, "group").groups for row in part):
        logs = torch.log_softmax(policy(torch.tensor(row.tokens)[None]).logits[0], -1)
        start = len(row.tokens) - 7
        for place, target in enumerate((start, start + 1, start + 5, start + 6)):
            log = logs[target - 1, row.tokens[target]]
            total = total - (log.detach() - row.behaviour[place]).exp() * row.advantage * log / 12
    expected = torch.autograd.grad(total, list(policy.parameters()))
    for (name, _), gradient in zip(policy.named_parameters(), expected, strict=True):
        torch.testing.assert_close(gradient_of[name], gradient, rtol=1e-4, atol=1e-6)


def test_one_minibatch_never_clips_and_four_do(policy: PreTrainedModel) -> None:
    train_batch = on_policy(policy, batch(1, groups=8))
    quick = Hyper(learning_rate=0.02, warmup_steps=0)
    one = step.train_step(policy, Optimiser(policy, quick), train_batch, quick, steps=0)
    assert one["clipped"] == 0.0
    assert one["ess"] == pytest.approx(1.0, abs=1e-6)
    again = model.load(Path(policy.name_or_path), "cpu")
    hyper = msgspec.structs.replace(quick, minibatches=4)
    four = step.train_step(again, Optimiser(again, hyper), train_batch, hyper, steps=0)
    assert four["clipped"] > 0.05
    assert four["ess"] == pytest.approx(1.0, abs=1e-6), "the proximal policy is the one at the start of the step"


def test_on_policy_the_learner_agrees_with_the_published_weights_to_rounding(policy: PreTrainedModel) -> None:
    train_batch, hyper = on_policy(policy, batch(1)), Hyper(warmup_steps=0, learning_rate=3e-3)
    optimiser = Optimiser(policy, hyper)
    assert step.train_step(policy, optimiser, train_batch, hyper, steps=0)["kl"] < 1e-10
    moved = on_policy(policy, batch(2))
    assert step.train_step(policy, optimiser, moved, hyper, steps=1)["kl"] < 1e-10


def test_the_model_holds_the_masters_rounded_and_small_updates_add_up(policy: PreTrainedModel) -> None:
    hyper = Hyper(learning_rate=1e-6, warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    start = {name: master.detach().clone() for name, master in optimiser.masters.items()}
    for number in (1, 2, 3):
        step.train_step(policy, optimiser, batch(number), hyper, steps=number - 1)
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(policy.get_parameter(name), publishable(optimiser.masters[name]).float())
    assert (optimiser.masters[name] - start[name]).abs().mean() > 1.5e-6


def test_a_batch_without_signal_changes_no_weight_even_with_momentum(policy: PreTrainedModel) -> None:
    hyper = Hyper(warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    step.train_step(policy, optimiser, batch(1), hyper, steps=0)
    before = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
    flat = TrainBatch(step=2, groups=[group(random.Random(1), "flat", 1, reward=0.2)])
    metrics = step.train_step(policy, optimiser, flat, hyper, steps=1)
    assert (metrics["zero_variance"], metrics["grad_norm"], metrics["reward"]) == (1.0, 0.0, pytest.approx(0.2))
    for name, tensor in optimiser.tensors().items():
        assert torch.equal(tensor, before[name]), name


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


def test_a_pull_to_the_reference_keeps_the_policy_nearer_to_it(policy: PreTrainedModel) -> None:
    def drift(coefficient: float) -> float:
        trained, reference = (model.load(Path(policy.name_or_path), "cpu") for _ in range(2))
        hyper = Hyper(learning_rate=3e-3, warmup_steps=0, kl_coefficient=coefficient)
        optimiser = Optimiser(trained, hyper)
        for steps in range(8):
            metrics = step.train_step(trained, optimiser, batch(1), hyper, steps=steps, reference=reference)
        return metrics["kl_reference"]

    assert 0 < drift(2.0) < 0.5 * drift(1e-6)


def test_metrics_are_told_apart_by_age(policy: PreTrainedModel) -> None:
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


BAD_FOLDERS = {
    "nothing in it": ([], "no config.json"),
    "a config alone": (["config.json"], "neither model.safetensors"),
    "pickled weights": (["config.json", "pytorch_model.bin"], "pickled weights are never read"),
}


@pytest.mark.parametrize("sentence", BAD_FOLDERS)
def test_a_folder_that_is_no_model_names_the_fix(sentence: str, tmp_path: Path) -> None:
    names, message = BAD_FOLDERS[sentence]
    for name in names:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(model.BadModelFolder, match=message):
        model.load(tmp_path, "cpu")


def test_a_config_that_no_architecture_knows_names_the_fix(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    (tmp_path / "model.safetensors").write_bytes((model_folder / "model.safetensors").read_bytes())
    with pytest.raises(model.BadModelFolder, match="update transformers"):
        model.load(tmp_path, "cpu")
