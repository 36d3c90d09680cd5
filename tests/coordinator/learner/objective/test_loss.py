"""Losses equal those computed by hand: tables give probabilities, and the docstring's formula the expected loss."""

import math
from typing import NamedTuple

import pytest
import torch

from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.objective.loss import reference_kl, token_loss
from echo2.coordinator.learner.objective.loss_terms import LossInputs, TokenLoss
from echo2.coordinator.settings.objective_choices import PRESETS, choices_of

HYPER = Hyper(eps_low=0.2, eps_high=0.28, truncation=2.0)


class Case(NamedTuple):
    objective: str
    current: float
    proximal: float
    behaviour: float
    advantage: float
    loss: float
    clipped: bool = False
    truncated: bool = False


CASES = {
    "uncorrected, the behaviour does not matter": Case("uncorrected", 0.6, 0.9, 0.1, 2.0, -2.0),
    "decoupled, inside both bounds: 0.5/0.4 * 0.6/0.5": Case("decoupled", 0.6, 0.5, 0.4, 1.0, -1.5),
    "decoupled, ratio 1.4 clipped at 1.28": Case("decoupled", 0.7, 0.5, 0.4, 1.0, -1.25 * 1.28, clipped=True),
    "decoupled, ratio 0.7 of a bad token clipped at 0.8": Case("decoupled", 0.35, 0.5, 0.4, -1.0, 1.0, clipped=True),
    "decoupled, ratio 1.4 of a bad token keeps its pull": Case("decoupled", 0.7, 0.5, 0.5, -1.0, 1.4),
    "decoupled, weight 2.5 truncated at 2": Case("decoupled", 0.5, 0.5, 0.2, 1.0, -2.0, truncated=True),
    "decoupled, small weights are kept": Case("decoupled", 0.2, 0.2, 0.8, 3.0, -0.75),
    "grpo inside the clip": Case("grpo", 0.5, 0.9, 0.4, 2.0, -2.5),
    "grpo, ratio 1.5 clipped at 1.28": Case("grpo", 0.6, 0.9, 0.4, 1.0, -1.28, clipped=True),
    "grpo, ratio 1.5 of a bad token is unbounded": Case("grpo", 0.6, 0.9, 0.4, -1.0, 1.5),
    "two-sided, ratio 8 of a bad token capped at 4": Case("two_sided", 0.8, 0.9, 0.1, -1.0, 4.0, True, True),
    "two-sided, ratio 1.5 as grpo": Case("two_sided", 0.6, 0.9, 0.4, 1.0, -1.28, clipped=True),
    "cispo weighs log p by the ratio": Case("cispo", 0.6, 0.9, 0.4, 1.0, -1.5 * math.log(0.6)),
    "cispo caps the weight 6 at 5": Case("cispo", 0.6, 0.9, 0.1, 1.0, -5 * math.log(0.6), truncated=True),
    "gspo of one token, ratio 1.25 clipped at 1.0004": Case("gspo", 0.5, 0.9, 0.4, 1.0, -1.0004, clipped=True),
    "gspo of one token, unmoved": Case("gspo", 0.4, 0.9, 0.4, -2.0, 2.0),
    "dppo, moved by 0.1": Case("dppo", 0.5, 0.9, 0.4, 1.0, -1.25 + 1e-3 * math.log(1.25) ** 2),
    "dppo, moved by 0.3 the way it should": Case("dppo", 0.7, 0.9, 0.4, 1.0, 1e-3 * math.log(1.75) ** 2, clipped=True),
    "dppo, moved by 0.3 against its advantage": Case("dppo", 0.7, 0.9, 0.4, -1.0, 1.75 + 1e-3 * math.log(1.75) ** 2),
}


def preset(name: str, terms: LossInputs) -> TokenLoss:
    return token_loss(PRESETS[name], terms, HYPER)


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def one(case: Case) -> tuple[LossInputs, TokenLoss]:
    terms = LossInputs(
        current=logs(case.current).requires_grad_(),
        proximal=logs(case.proximal),
        behaviour=logs(case.behaviour),
        advantage=torch.tensor([case.advantage]),
        rollout=torch.tensor([0]),
        group=torch.tensor([0]),
        expected=logs(case.behaviour),
    )
    return terms, preset(case.objective, terms)


@pytest.mark.parametrize("sentence", CASES)
def test_the_loss_of_one_token_is_that_of_the_formula(sentence: str) -> None:
    case = CASES[sentence]
    _, of_tokens = one(case)
    assert float(of_tokens.value.detach()) == pytest.approx(case.loss, rel=1e-5)
    assert (bool(of_tokens.clipped), bool(of_tokens.truncated)) == (case.clipped, case.truncated)


@pytest.mark.parametrize("sentence", CASES)
def test_a_token_is_reported_clipped_exactly_when_its_advantage_has_no_gradient(sentence: str) -> None:
    case = CASES[sentence]
    terms, of_tokens = one(case)
    (gradient,) = torch.autograd.grad(of_tokens.value.sum(), terms.current)
    penalty = 2e-3 * math.log(case.current / case.behaviour) if case.objective == "dppo" else 0.0
    assert (abs(float(gradient) - penalty) < 1e-6) == case.clipped


def random_terms(count: int, *, proximal_is_current: bool) -> LossInputs:
    chance = torch.Generator().manual_seed(3)
    current = (-torch.rand(count, generator=chance) * 3).requires_grad_()
    proximal = current.detach() if proximal_is_current else -torch.rand(count, generator=chance) * 3
    behaviour = proximal + torch.randn(count, generator=chance) * 0.7
    advantage = torch.randn(count, generator=chance)
    rollout = torch.arange(count) // 4
    return LossInputs(current, proximal, behaviour, advantage, rollout, rollout // 2, behaviour)


def test_with_one_minibatch_the_decoupled_gradient_is_truncated_importance_sampling() -> None:
    terms = random_terms(64, proximal_is_current=True)
    (gradient,) = torch.autograd.grad(preset("decoupled", terms).value.sum(), terms.current)
    weight = (terms.proximal - terms.behaviour).exp().clamp(max=2.0)
    assert weight.max() == 2.0
    torch.testing.assert_close(gradient, -weight * terms.advantage)


def test_gspo_uses_the_geometric_mean_ratio_of_the_whole_rollout() -> None:
    behaviour = logs(0.5, 0.5, 0.5)
    shift = torch.tensor([2e-4, 0.0, 1e-4])
    terms = LossInputs(
        (behaviour + shift).requires_grad_(),
        behaviour,
        behaviour,
        torch.ones(3),
        torch.tensor([0, 0, 1]),
        torch.zeros(3, dtype=torch.int64),
        torch.zeros(3),
    )
    of_tokens = preset("gspo", terms)
    torch.testing.assert_close(of_tokens.value, -torch.exp(torch.tensor([1e-4, 1e-4, 1e-4])))
    (gradient,) = torch.autograd.grad(of_tokens.value.sum(), terms.current)
    torch.testing.assert_close(gradient, -torch.exp(torch.tensor([1e-4, 1e-4, 1e-4])))


@pytest.mark.parametrize("name", PRESETS)
def test_an_extreme_ratio_leaves_loss_and_gradient_finite(name: str) -> None:
    current = torch.tensor([-1e-3, -300.0], requires_grad=True)
    terms = LossInputs(
        current,
        current.detach(),
        torch.tensor([-400.0, -1e-3]),
        torch.tensor([1.0, -1.0]),
        torch.tensor([0, 1]),
        torch.tensor([0, 0]),
        torch.tensor([-1e-3, -1e-3]),
    )
    value = preset(name, terms).value.sum()
    (gradient,) = torch.autograd.grad(value, current)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_the_reference_divergence_is_zero_at_the_reference_and_positive_elsewhere() -> None:
    divergence = reference_kl(logs(0.5, 0.3), logs(0.25, 0.3))
    assert divergence.tolist() == pytest.approx([0.5 - 1 - math.log(0.5), 0.0])


def test_the_error_for_an_unknown_objective_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="choose one of cispo, decoupled, dppo, gepo, grpo, gspo, two_sided, uncorrected"
    ):
        choices_of(Hyper(objective="ppo"))
