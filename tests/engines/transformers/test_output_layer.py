"""The output layer in 16-bit formats: its logits are sums in float32, which nothing rounds."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from echo2.engines.transformers.output_layer import CPU_WEIGHTS, OutputLayer

WIDTH, WORDS = 64, 20_000


def layer_of(dtype: torch.dtype, bias: bool) -> nn.Linear:
    return nn.Linear(WIDTH, WORDS, bias=bias, dtype=dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_logits_are_those_of_the_exact_sums(dtype: torch.dtype, bias: bool) -> None:
    assert WORDS * WIDTH > 2 * CPU_WEIGHTS, "the layer is not widened in several parts"
    torch.manual_seed(5)
    linear, hidden = layer_of(dtype, bias), 20 * torch.randn(2, 3, WIDTH).to(dtype)
    exact = hidden.double() @ linear.weight.double().t() + (linear.bias.double() if bias else 0)
    logits = OutputLayer(linear)(hidden)
    assert (logits.dtype, logits.shape) == (torch.float32, (2, 3, WORDS))
    assert (logits - exact).abs().max() < 1e-4
    assert (linear(hidden) - exact).abs().max() > 1e-3, "the layer by itself rounds no logit either"


def test_a_layer_in_float32_is_computed_by_itself() -> None:
    linear, hidden = layer_of(torch.float32, True), torch.randn(3, WIDTH)
    assert torch.equal(OutputLayer(linear)(hidden), linear(hidden))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_gives_float32_without_a_wide_copy_of_the_weights(dtype: torch.dtype) -> None:
    linear = nn.Linear(WIDTH, WORDS, dtype=dtype, device="meta")
    with FakeTensorMode(), torch.no_grad():
        for name, one in list(linear.named_parameters()):
            setattr(linear, name, nn.Parameter(torch.empty(one.shape, dtype=dtype, device="cuda")))
        logits = OutputLayer(linear)(torch.empty(2, 3, WIDTH, dtype=dtype, device="cuda"))
    assert (logits.dtype, logits.shape, logits.device.type) == (torch.float32, (2, 3, WORDS), "cuda")
