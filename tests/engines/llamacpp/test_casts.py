import numpy as np
import pytest
import torch

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp.casts import cast

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
TO = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WIDTH = {"BF16": torch.int16, "F16": torch.int16, "F32": torch.int32}


def values() -> torch.Tensor:
    """Return weights of many sizes, among them ties, subnormals, and both zeros."""
    random = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    scales = 2.0 ** torch.randint(-40, 15, (5000,), generator=torch.Generator().manual_seed(2))
    edges = torch.tensor([0.0, -0.0, 1.00390625, 1.01171875, 65503.9, -65503.0, 2.0**-24, 2.0**-25, 2.0**-14, 1e-40])
    return torch.cat([(random * scales).clamp(-65000, 65000), edges])


@pytest.mark.parametrize("source", TORCH)
@pytest.mark.parametrize("to", TO)
def test_a_cast_gives_the_bits_that_torch_gives(source: str, to: str) -> None:
    tensor = values().to(TORCH[source])
    tensor = tensor[tensor.abs() < 65504]
    bits = tensor.view(WIDTH[source]).numpy().view(f"<u{tensor.element_size()}")
    expected = tensor.to(TO[to])
    width = torch.int32 if to == "float32" else torch.int16
    got = cast(bits, source, to, "a tensor")
    assert np.array_equal(got.view(np.int32 if to == "float32" else np.int16), expected.view(width).numpy())


@pytest.mark.parametrize("weight", [65504.0, -65504.0, 1e6, float("inf"), float("nan")])
def test_a_weight_that_float16_cannot_hold_is_refused_by_its_name(weight: float) -> None:
    bits = np.array([1.0, weight], np.float32).view(np.uint32)
    with pytest.raises(EngineError, match=r"the\.tensor has the weight .*, which float16 cannot hold"):
        cast(bits, "F32", "float16", "the.tensor")
    assert cast(bits, "F32", "float32", "the.tensor").view(np.uint32).tolist() == bits.tolist()


def test_a_type_that_is_no_float_of_16_or_32_bits_is_refused() -> None:
    with pytest.raises(EngineError, match="x is of type I8"):
        cast(np.zeros(1, np.uint8), "I8", "float32", "x")
