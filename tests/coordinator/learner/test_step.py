import math
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from echo2.coordinator.learner import model, step
from echo2.coordinator.learner.batches.batch import pack, rows
from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.coordinator.learner.batches.cut_rollouts import CutRule
from echo2.coordinator.learner.batches.dealing import shares
from echo2.coordinator.learner.batches.logprobs import token_logprobs
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.model import head_of
from echo2.coordinator.learner.objective.loss import reference_kl, token_loss
from echo2.coordinator.learner.objective.loss_terms import LossInputs
from echo2.coordinator.learner.objective.step_metrics import StepMetrics
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.settings.objective_choices import PRESETS, choices_of
from tests.support.tiny_learner import batch, group, on_policy


def gradients(
    policy: PreTrainedModel, train_batch: TrainBatch, hyper: Hyper, reference: PreTrainedModel | None = None
) -> dict[str, torch.Tensor]:
    optimiser = Optimiser(policy, hyper)
    flat = hyper.kl_groups == "all"
    (share,) = shares(rows(train_batch, hyper.advantage, flat=flat), hyper.minibatches)
    mini = step.mini_batch(policy, share, 0, hyper.microbatch_tokens, hyper, 16)
    step.accumulate(policy, mini, None, hyper, StepMetrics(), optimiser, reference)
    return optimiser.gradients()


def test_micro_batches_give_the_gradient_of_one_batch(policy: PreTrainedModel) -> None:
    train_batch = batch(1, groups=6)
    whole = gradients(policy, train_batch, Hyper())
    parts = gradients(policy, train_batch, Hyper(microbatch_tokens=24))
    assert whole.keys() == parts.keys() == dict(policy.named_parameters()).keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("aggregate", ["tokens", "sequences", "constant"])
@pytest.mark.parametrize("weight", ["sequence_mask", "m2po"])
def test_a_weight_of_the_whole_mini_batch_does_not_depend_on_the_micro_batches(
    policy: PreTrainedModel, weight: str, aggregate: str
) -> None:
    hyper = Hyper(weight=weight, aggregate=aggregate)
    train_batch = on_policy(policy, batch(1, groups=6))
    for number, sample in enumerate(one for part in train_batch.groups for one in part.samples):
        shift = (-0.5, 0.02, 0.5, 0.05)[number % 4] * (1 + 0.001 * number)
        sample.behaviour[:] += shift * (1 + 0.05 * np.arange(len(sample.behaviour)))  # no ties in m2po's order
    whole = gradients(policy, train_batch, hyper)
    assert any(gradient.any() for gradient in whole.values())
    parts = gradients(policy, train_batch, msgspec.structs.replace(hyper, microbatch_tokens=24))
    capped = gradients(policy, train_batch, msgspec.structs.replace(hyper, weight="token_cap"))
    assert not all(torch.allclose(capped[name], gradient, rtol=0.1) for name, gradient in whole.items())
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("kl_coefficient", "temperature"),
    [(0.0, 1000), (0.5, 1000), (0.5, 800)],
    ids=["without a reference", "with one", "with one at temperature 0.8"],
)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_each_objective_has_the_gradient_of_its_loss_over_all_tokens(
    policy: PreTrainedModel, name: str, kl_coefficient: float, temperature: int
) -> None:
    hyper = Hyper(objective=name, kl_coefficient=kl_coefficient, temperature=temperature)
    (micro,) = pack(rows(batch(1), hyper.advantage).groups, 10_000)
    other = model.load(Path(policy.name_or_path), "cpu")
    with torch.no_grad():
        head_of(other).linear.weight.mul_(1.1)
    current = token_logprobs(policy, micro, temperature=temperature)
    reference = token_logprobs(other, micro, temperature=temperature).detach()
    terms = LossInputs(
        current, current.detach(), micro.behaviour, micro.advantage, micro.row, micro.group, micro.expected
    )
    value = token_loss(choices_of(hyper), terms, hyper).value + kl_coefficient * reference_kl(current, reference)
    expected = torch.autograd.grad(value.mean(), list(policy.parameters()))
    found = gradients(policy, batch(1), hyper, other)
    for (parameter, _), gradient in zip(policy.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-6)


def test_a_step_at_a_temperature_has_the_divergence_and_the_entropy_of_that_temperature(
    policy: PreTrainedModel,
) -> None:
    """Rollouts of the policy itself have no divergence from it, by one mini-batch or by a pass before two."""
    for minibatches in (1, 2):
        hyper = Hyper(temperature=800, minibatches=minibatches, learning_rate=1e-9)
        train_batch = on_policy(policy, batch(1, groups=4), 800)
        cooler = step.train_step(policy, Optimiser(policy, hyper), train_batch, hyper, steps=0)
        plain = msgspec.structs.replace(hyper, temperature=1000)
        hotter = step.train_step(policy, Optimiser(policy, plain), train_batch, plain, steps=0)
        assert cooler["kl"] == pytest.approx(0.0, abs=1e-6)
        assert hotter["kl"] > 1e-4
        assert cooler["entropy"] < hotter["entropy"]


def mixed(lengths: tuple[int, int] = (5, 5)) -> TrainBatch:
    """Return a group with signal and one without."""
    chance = random.Random(4)
    live, flat = (group(chance, name, turns=(length,)) for name, length in zip(("live", "flat"), lengths, strict=True))
    samples = [msgspec.structs.replace(one, reward=0.2) for one in flat.samples]
    return TrainBatch(step=1, groups=[live, msgspec.structs.replace(flat, samples=samples)])


@pytest.mark.parametrize(("aggregate", "share"), [("tokens", 5 / 8), ("sequences", 1 / 2), ("constant", 1 / 2)])
def test_with_all_rollouts_in_the_denominator_the_gradient_shrinks_with_the_share_of_signal(
    policy: PreTrainedModel, aggregate: str, share: float
) -> None:
    hyper = Hyper(aggregate=aggregate)
    of_signal = gradients(policy, mixed((5, 3)), hyper)
    of_all = gradients(policy, mixed((5, 3)), msgspec.structs.replace(hyper, denominator="all"))
    for name, gradient in of_signal.items():
        torch.testing.assert_close(of_all[name], gradient * share, rtol=1e-5, atol=1e-8)


def test_a_kl_term_over_all_groups_covers_those_without_signal(policy: PreTrainedModel) -> None:
    other = model.load(Path(policy.name_or_path), "cpu")
    with torch.no_grad():
        head_of(other).linear.weight.mul_(1.1)
    hyper = Hyper(kl_coefficient=0.5, kl_groups="all")
    flat = TrainBatch(step=1, groups=[mixed().groups[1]])
    (micro,) = pack(rows(flat, "group", flat=True).flat, 10_000)
    divergence = reference_kl(token_logprobs(policy, micro), step.frozen_logprobs(other, micro, Hyper()))
    expected = torch.autograd.grad(0.5 * divergence.mean(), list(policy.parameters()))
    found = gradients(policy, flat, hyper, other)
    for (name, _), gradient in zip(policy.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    metrics = step.train_step(policy, Optimiser(policy, hyper), flat, hyper, steps=1, reference=other)
    assert metrics["zero_variance"] == 1.0
    assert metrics["grad_norm"] > 0
    assert metrics["kl_reference"] == pytest.approx(float(divergence.detach().mean()), rel=1e-4)
    assert metrics["loss"] == pytest.approx(0.5 * metrics["kl_reference"], rel=1e-4)


def test_rollouts_that_the_limit_cut_have_no_loss_where_they_are_masked(policy: PreTrainedModel) -> None:
    train_batch = batch(1)
    first = train_batch.groups[0].samples[0]
    first.tokens[-1] = 12
    cut = CutRule("masked", ends=tuple(range(2, 12)))
    whole, kept = rows(train_batch, "group"), rows(train_batch, "group", cut)
    assert kept.masked == [(0, 5)]
    assert [len(part) for part in kept.groups] == [3, 4, 4]
    assert kept.groups[0][0].advantage == whole.groups[0][1].advantage, "its reward stays in the group's mean"
    assert (kept.tokens, kept.rollouts) == (60, 12)


def test_given_tokens_carry_no_loss(policy: PreTrainedModel) -> None:
    """The loss computed over the sampled tokens alone, from the model's own logits, has the same gradient."""
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


def test_a_thousand_batches_without_signal_change_no_weight_and_the_next_one_does(policy: PreTrainedModel) -> None:
    hyper = Hyper(warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    before = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
    for number in range(1, 1001):
        flat = TrainBatch(step=number, groups=[group(random.Random(number), "flat", number - 1, reward=0.2)])
        metrics = step.train_step(policy, optimiser, flat, hyper, steps=number - 1)
        assert (metrics["grad_norm"], metrics["skipped_updates"]) == (0.0, 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimiser.tensors().items())
    step.train_step(policy, optimiser, batch(1001), hyper, steps=1000)
    assert not all(torch.equal(tensor, before[name]) for name, tensor in optimiser.tensors().items() if name in before)


def test_a_reward_that_is_not_finite_is_refused_before_any_weight_changes(policy: PreTrainedModel) -> None:
    hyper = Hyper(warmup_steps=0)
    optimiser = Optimiser(policy, hyper)
    before = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
    for reward in (math.nan, math.inf, -math.inf):
        bad = batch(1)
        sample, *others = bad.groups[0].samples
        bad.groups[0] = msgspec.structs.replace(
            bad.groups[0], samples=[msgspec.structs.replace(sample, reward=reward), *others]
        )
        with pytest.raises(ValueError, match="a reward is not a finite number"):
            step.train_step(policy, optimiser, bad, hyper, steps=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimiser.tensors().items())


@pytest.mark.slow
def test_a_kl_term_keeps_the_policy_nearer_to_the_reference(policy: PreTrainedModel) -> None:
    def drift(coefficient: float) -> float:
        trained, reference = (model.load(Path(policy.name_or_path), "cpu") for _ in range(2))
        hyper = Hyper(learning_rate=3e-3, warmup_steps=0, kl_coefficient=coefficient)
        optimiser = Optimiser(trained, hyper)
        for steps in range(8):
            metrics = step.train_step(trained, optimiser, batch(1), hyper, steps=steps, reference=reference)
        return metrics["kl_reference"]

    assert 0 < drift(2.0) < 0.5 * drift(1e-6)
