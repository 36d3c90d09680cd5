"""A float32 master weight in two parts: the published bfloat16 value, which is the model's own parameter, and 16 bits.

1. The published value is the master rounded to bfloat16, to nearest, ties to even: `publishable`, the policy's only
   cast. The residual is the difference of their bits as integers, the published value widened to float32, so both
   parts give the master exactly.
2. That difference lies between -32,768 and 32,768. Only a tie that is rounded down has 32,768, for which int16 has no
   place: the residual is 32,767 then, and the master one unit in its last place nearer to the published value, before
   anything is published or saved.

Two bytes per parameter instead of four, and no second copy of the model.
"""

from typing import Final

import torch
from torch import Tensor

MOST_RESIDUAL: Final = 32_767


def publishable(master: Tensor) -> Tensor:
    """Round float32 to bfloat16, to nearest, ties to even: the only cast of the policy."""
    return master.to(torch.bfloat16)


@torch.no_grad()
def put(master: Tensor, parameter: Tensor, residual: Tensor) -> None:
    """Split a master (float32) into a model's parameter (float32 or bfloat16) and its residual (int16)."""
    high = publishable(master)
    apart = master.view(torch.int32) - high.float().view(torch.int32)
    residual.copy_(apart.clamp_(max=MOST_RESIDUAL))
    parameter.copy_(high)


@torch.no_grad()
def join_master(parameter: Tensor, residual: Tensor) -> Tensor:
    """Return the master of which these are the parts, a new tensor."""
    return (parameter.detach().float().view(torch.int32) + residual.to(torch.int32)).view(torch.float32)
