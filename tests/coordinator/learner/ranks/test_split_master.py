"""A master in two parts: the published value and 16 bits, together exactly the master."""

import pytest
import torch
from torch import Tensor

from echo2.coordinator.learner.ranks.split_master import join_master, publishable, put

TIE = 0x8000


def split(master: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    parameter, residual = torch.empty_like(master, dtype=dtype), torch.empty_like(master, dtype=torch.int16)
    put(master, parameter, residual)
    return parameter, residual


def masters(high: int, sign: int) -> Tensor:
    """All 65,536 values with these upper bits."""
    bits = (high << 16) + torch.arange(1 << 16, dtype=torch.int64) + (sign << 31)
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


HIGH = {
    "an even upper half": 0x3F80,
    "an odd one": 0x3F81,
    "the end of a binade": 0x3FFF,
    "zero and the smallest subnormals": 0x0000,
    "the largest subnormals": 0x007F,
    "the largest finite ones": 0x7F7F,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sign", [0, 1], ids=["plus", "minus"])
@pytest.mark.parametrize("high", HIGH.values(), ids=HIGH.keys())
def test_both_parts_give_the_master_exactly_but_for_ties_that_are_rounded_down(
    high: int, sign: int, dtype: torch.dtype
) -> None:
    master = masters(high, sign)
    parameter, residual = split(master, dtype)
    assert torch.equal(parameter, publishable(master).to(dtype))
    bits, found = master.view(torch.int32), join_master(parameter, residual).view(torch.int32)
    ties_down = torch.arange(1 << 16) == TIE if high % 2 == 0 else torch.zeros(1 << 16, dtype=torch.bool)
    assert torch.equal(found, bits - ties_down.to(torch.int32))


@pytest.mark.parametrize("high", [0x3F80, 0x3F81])
def test_what_was_joined_is_split_into_the_same_parts(high: int) -> None:
    parameter, residual = split(masters(high, 0), torch.float32)
    again = split(join_master(parameter, residual), torch.float32)
    assert torch.equal(again[0], parameter)
    assert torch.equal(again[1], residual)
