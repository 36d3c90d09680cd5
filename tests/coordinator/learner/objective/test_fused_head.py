"""Head and loss in chunks: the loss, the gradients and the entropy of the model's own logits."""

import pytest
import torch
from torch import Tensor

from echo2.coordinator.learner.objective import fused_head
from echo2.coordinator.learner.objective.fused_head import chunk_rows, fused_loss
from echo2.engines.transformers.output_layer import OutputLayer

TOKENS, SIZE, WORDS = 11, 8, 29
WEIGHTS = torch.linspace(-1.0, 2.0, TOKENS)


def squares(current: Tensor, cut: slice) -> Tensor:
    return (WEIGHTS[cut] * current.square()).sum()


def head(dtype: torch.dtype = torch.float32, *, bias: bool = False) -> torch.nn.Linear:
    torch.manual_seed(2)
    return torch.nn.Linear(SIZE, WORDS, bias=bias).to(dtype)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(3)
    states = torch.randn((TOKENS, SIZE), generator=chance).to(dtype).requires_grad_()
    return states, torch.randint(0, WORDS, (TOKENS,), generator=chance)


@pytest.mark.parametrize("chunk", [1, 4, None])
@pytest.mark.parametrize("bias", [False, True])
def test_loss_gradients_and_entropy_are_those_of_the_whole_logits(chunk: int | None, bias: bool) -> None:
    linear, (states, target) = head(bias=bias), inputs()
    logs = torch.log_softmax(linear(states), 1)
    expected = squares(logs.gather(1, target[:, None])[:, 0], slice(None))
    fused = fused_loss(OutputLayer(linear), states, target, squares, chunk)
    torch.testing.assert_close(fused.loss, expected)
    torch.testing.assert_close(fused.logprobs, logs.detach().gather(1, target[:, None])[:, 0])
    torch.testing.assert_close(fused.entropy, -(logs.exp() * logs).sum(1).detach())
    to = [states, *linear.parameters()]
    torch.testing.assert_close(torch.autograd.grad(3 * fused.loss, to), torch.autograd.grad(3 * expected, to))


@pytest.mark.parametrize("factor", [1.0, 1.25])
@pytest.mark.parametrize("layer", [(1.0, None), (0.25, None), (1.0, 1.5), (3.0, 0.5)])
def test_a_head_that_scales_or_caps_its_logits_gets_their_gradients_at_any_temperature(
    layer: tuple[float, float | None], factor: float
) -> None:
    linear, (states, target) = head(bias=True), inputs()
    scale, cap = layer
    logits = linear(states) * scale
    logs = torch.log_softmax((logits if cap is None else cap * torch.tanh(logits / cap)) * factor, 1)
    expected = squares(logs.gather(1, target[:, None])[:, 0], slice(None))
    fused = fused_loss(OutputLayer(linear, scale, cap, factor), states, target, squares, 4)
    torch.testing.assert_close(fused.loss, expected)
    torch.testing.assert_close(fused.entropy, -(logs.exp() * logs).sum(1).detach())
    to = [states, *linear.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(fused.loss, to), torch.autograd.grad(expected, to), rtol=1e-5, atol=5e-5
    )


def test_a_frozen_head_gets_no_gradient() -> None:
    linear, (states, target) = head().requires_grad_(False), inputs()
    torch.autograd.backward(fused_loss(OutputLayer(linear), states, target, squares).loss)
    assert linear.weight.grad is None
    assert states.grad is not None


def test_logits_are_not_rounded_to_the_type_of_computation() -> None:
    linear, (states, target) = head(torch.bfloat16), inputs(torch.bfloat16)
    logs = torch.log_softmax(states.detach().double() @ linear.weight.detach().double().t(), 1)
    expected = logs.gather(1, target[:, None])[:, 0].float()
    rounded = torch.log_softmax(linear(states).float(), 1).gather(1, target[:, None])[:, 0]
    fused = fused_loss(OutputLayer(linear), states, target, squares)
    torch.testing.assert_close(fused.logprobs, expected, rtol=0, atol=1e-6)
    assert float((rounded.detach() - expected).abs().max()) > 1e-4
    torch.autograd.backward(fused.loss)
    assert linear.weight.grad.dtype == torch.bfloat16


def test_a_gpu_multiplies_in_16_bits_adds_up_in_float32_and_has_the_loss_of_float32_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA's products with a float32 result are computed here by float32 products of the same 16-bit numbers."""

    def mm(left: Tensor, right: Tensor, *, out_dtype: torch.dtype) -> Tensor:
        assert (left.dtype, right.dtype, out_dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
        return left.float() @ right.float()

    def addmm(total: Tensor, left: Tensor, right: Tensor, *, out_dtype: torch.dtype, out: Tensor) -> Tensor:
        assert out is total
        return total.add_(mm(left, right, out_dtype=out_dtype))

    linear, (states, target) = head(torch.bfloat16, bias=True), inputs(torch.bfloat16)
    to = [states, *linear.parameters()]
    wide = fused_loss(OutputLayer(linear), states, target, squares, 4)
    expected = torch.autograd.grad(wide.loss, to)
    monkeypatch.setattr(fused_head, "_adds_wide", lambda device, kind: kind != torch.float32)
    monkeypatch.setattr(torch, "mm", mm)
    monkeypatch.setattr(torch, "addmm", addmm)
    fused = fused_loss(OutputLayer(linear), states, target, squares, 4)
    torch.testing.assert_close(fused.loss, wide.loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(fused.logprobs, wide.logprobs, rtol=0, atol=1e-6)
    for gradient, exact in zip(torch.autograd.grad(fused.loss, to), expected, strict=True):
        torch.testing.assert_close(gradient, exact, rtol=2e-2, atol=2e-2 * float(exact.abs().max()))


def test_a_gpu_computes_the_head_for_thousands_of_rows_at_once() -> None:
    assert chunk_rows(151_936, "cpu") == 55
    assert chunk_rows(151_936, "cuda") == 4096
    assert chunk_rows(49_152, "cuda") > 4096
